"""Build the wheel: all of ours below one package, `tensorprimat`, and every import of ours written accordingly.

In a checkout our folders are packages by themselves (`from conf.errors import Problem`). Installed like that they would
meet a user's own `conf/` or `metrics.py`. So a wheel has them in tensorprimat/_app/, and its modules say
`from tensorprimat._app.conf.errors import Problem`."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDERS = ("conf", "launchers", "parsers", "metrics", "compare", "estimate", "measure", "corpora", "shell")
PACKAGE = "tensorprimat"
INNER = "_app"
_OURS = "|".join(FOLDERS)
_REFUSED = {  # f"launchers.{name}" has nothing but names and dots
    rf"^ *import .*\b(?:{_OURS})[.,]": "write `from … import …`, which a wheel can have below a package",
    rf"f([\"'])(?:{_OURS})\.[\w.]*(?:\{{[^}}]*\}}[\w.]*)+\1": "name a module of ours by __package__, "
    "which is another in a wheel",
}
# The programs that run inside the ranks import nothing of ours, and a vendor's module may have one of our names.
AS_IT_IS = Path("launchers", "ranks")
CHECKOUT_ONLY = "run_primus*.sh"  # they start launch.py


class OneName(BuildHookInterface):
    """Puts the rewritten tree into the wheel. An editable installation has the checkout itself."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self.made = Path(tempfile.mkdtemp(prefix="tensorprimat-wheel-"))
        tree(Path(self.root), self.made)
        build_data["force_include"][str(self.made)] = PACKAGE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(getattr(self, "made", ""), ignore_errors=True)


def tree(root: Path, target: Path) -> None:
    """Copy the package of the checkout `root` to `target` as a wheel has it."""
    skipped = shutil.ignore_patterns("__pycache__", "*.pyc", CHECKOUT_ONLY)
    shutil.copytree(root / PACKAGE, target, ignore=skipped, dirs_exist_ok=True)
    (target / INNER).mkdir()
    (target / INNER / "__init__.py").touch()
    for folder in FOLDERS:
        shutil.copytree(root / folder, target / INNER / folder, ignore=skipped)
    for path in sorted(target.rglob("*.py")):
        if not path.is_relative_to(target / INNER / AS_IT_IS):
            path.write_text(rewritten(path.read_text(encoding="utf-8"), root, path.name), encoding="utf-8")


def rewritten(text: str, root: Path, name: str) -> str:
    """Return a module with its imports of FOLDERS, and the names of such modules in strings, below tensorprimat._app.

    ValueError: `import conf.errors`, which binds another name than it would below a package, or f"launchers.{name}"."""
    for pattern, what in _REFUSED.items():
        if match := re.search(pattern, text, re.MULTILINE):
            raise ValueError(f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {what}")

    def module(match: re.Match[str]) -> str:
        path = root / match[2].replace(".", "/")
        there = path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
        return f"{match[1]}{PACKAGE}.{INNER}.{match[2]}{match[1]}" if there else match[0]

    text = re.sub(rf"^( *)from ({_OURS})\b", rf"\1from {PACKAGE}.{INNER}.\2", text, flags=re.MULTILINE)
    text = re.sub(rf"^( *)import ({_OURS})\b", rf"\1from {PACKAGE}.{INNER} import \2", text, flags=re.MULTILINE)
    return re.sub(rf"([\"'])((?:{_OURS})(?:\.\w+)+)\1", module, text)
