"""Begin a command: imported before all else, so that Ctrl-C ends it without a traceback while it imports, too."""

from __future__ import annotations

import signal
from importlib import import_module


def run(module: str) -> int:
    """Return the exit code of main() of a module, 130 where somebody ended it before that could say so itself
    (conf.errors.command)."""
    try:
        code: int = import_module(module).main(None)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return code


def tprimat() -> int:
    """Be the installed command."""
    return run("tensorprimat.cli")
