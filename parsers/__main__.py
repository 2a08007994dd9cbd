from parsers.cli import main

raise SystemExit(main(None))
