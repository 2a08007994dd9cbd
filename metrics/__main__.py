from tensorprimat.claims import main

raise SystemExit(main(None))
