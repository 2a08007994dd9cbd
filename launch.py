"""Run LLM pre-training experiments: `python launch.py model=llama platform=nvidia` (tensorprimat/launch.py)."""

import sys

from tensorprimat.entry import run


def main(_: None) -> int:
    from launchers import early

    early.begin(sys.argv[1:])
    from tensorprimat.launch import main as launch

    return launch(None)


if __name__ == "__main__":
    sys.exit(run("launch"))
