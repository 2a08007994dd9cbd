from tensorprimat.cli import main

raise SystemExit(main(None))
