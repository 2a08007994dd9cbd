"""Run LLM pre-training experiments: `python launch.py model=llama platform=nvidia` (tensorprimat/launch.py)."""

import sys

from tensorprimat.launch import main

if __name__ == "__main__":
    sys.exit(main(None))
