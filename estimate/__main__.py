from estimate.cli import main

raise SystemExit(main(None))
