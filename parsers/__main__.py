import sys

from parsers.cli import main

sys.exit(main(None))
