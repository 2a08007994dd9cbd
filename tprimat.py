"""The installed command: `tprimat launch|check|data|parse|metrics|compare …`, each the same as its `python …` form."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS = {
    "launch": ("launch", "run an experiment: tprimat launch model=llama platform=nvidia"),
    "check": ("check_experiment", "can it run here, and as asked? tprimat check model=llama platform=nvidia"),
    "data": ("launchers.data_cli", "look into a corpus, or ahead: tprimat data preview platform=cpu"),
    "parse": ("parsers.cli", "read training logs: tprimat parse LOG"),
    "metrics": ("metrics.cli", "figures of runs: tprimat metrics RUN"),
    "compare": ("compare.cli", "compare runs: tprimat compare RUN RUN -o DIR"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code of the subcommand named first in `argv`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print("\n".join(["usage: tprimat COMMAND …", *(f"  {name:<9}{text}" for name, (_, text) in COMMANDS.items())]))
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in COMMANDS:
        print(f"tprimat: no such command: {name}\n    allowed: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    sys.argv = [f"tprimat {name}", *rest]
    code: int = import_module(COMMANDS[name][0]).main(rest)
    return code


if __name__ == "__main__":
    sys.exit(main())
