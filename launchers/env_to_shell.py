"""shell/env_to_shell.sh KEY=VALUE…: an experiment as exported variables, for a shell script to source.
TPRIMAT_SEQ_LENGTH=8192 and so on for every canonical setting (conf/vocabulary.yaml), empty where it is null, then what
the run itself exports. Quoted so that no value is read as anything but itself."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from conf import load_experiment
from conf.errors import command
from conf.vocabulary import requested
from launchers import make_plan, where

PREFIX = "TPRIMAT_"


def exports(values: Mapping[str, Any]) -> str:
    """Return a line `export NAME=VALUE` for each value: true, false, and nothing for None."""
    words = {None: "", True: "true", False: "false"}
    texts = {name: words[v] if v is None or isinstance(v, bool) else str(v) for name, v in values.items()}
    return "".join(f"export {name}={shlex.quote(text)}\n" for name, text in texts.items())


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Print them. 0: printed; 2: overrides that are not an experiment."""
    e = load_experiment(*(sys.argv[1:] if argv is None else argv))
    plan = make_plan(e, where.host())
    print(exports({f"{PREFIX}{name.upper()}": value for name, value in requested(e).items()} | dict(plan.env)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(None))
