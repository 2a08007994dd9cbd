"""Run LLM pre-training experiments: `python launch.py model=llama platform=nvidia` (tensorprimat/launch.py)."""

import sys

from launchers import early

if __name__ == "__main__":
    early.begin(sys.argv[1:])
    from tensorprimat.launch import main

    sys.exit(main(None))
