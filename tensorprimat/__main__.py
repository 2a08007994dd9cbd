import sys

from tensorprimat.cli import main

sys.exit(main(None))
