from metrics.cli import main

raise SystemExit(main(None))
