from tensorprimat.parse import main

raise SystemExit(main(None))
