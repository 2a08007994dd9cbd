"""Build the wheel: all of ours below one package, `tensorprimat`, and every import of ours written accordingly.

In a checkout our folders are packages by themselves (`from conf.errors import Problem`). Installed like that they would
meet a user's own `conf/` or `metrics.py`. So a wheel has them in tensorprimat/_app/, and its modules say
`from tensorprimat._app.conf.errors import Problem`.
"""

from __future__ import annotations

import ast
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDERS = ("conf", "launchers", "parsers", "metrics", "compare", "estimate", "shell")
PACKAGE = "tensorprimat"
INNER = "_app"
# The programs that run inside the ranks import nothing of ours, and a vendor's module may have one of our names.
AS_IT_IS = Path("launchers", "ranks")


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
    skipped = shutil.ignore_patterns("__pycache__", "*.pyc")
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

    ValueError: `import conf.errors`, which binds another name than it would below a package.
    """
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and not node.level and _is_ours(node.module or ""):
            _replace(lines, node.lineno, rf"from {node.module}\b", f"from {PACKAGE}.{INNER}.{node.module}")
        elif isinstance(node, ast.Import) and any(_is_ours(alias.name) for alias in node.names):
            if len(node.names) > 1 or "." in node.names[0].name:
                raise ValueError(
                    f"{name}:{node.lineno}: write `from … import …`, which a wheel can have below a package"
                )
            _replace(lines, node.lineno, r"import ", f"from {PACKAGE}.{INNER} import ")
        elif isinstance(node, ast.JoinedStr) and _names_a_module(node):
            raise ValueError(f"{name}:{node.lineno}: name a module of ours by __package__, which is another in a wheel")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_module(node.value, root):
            _replace(lines, node.lineno, rf"([\"']){re.escape(node.value)}\1", rf"\1{PACKAGE}.{INNER}.{node.value}\1")
    return "\n".join(lines)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in FOLDERS


def _is_module(text: str, root: Path) -> bool:
    """Return whether `text` is the dotted name of a module of ours, as in import_module("parsers.cli")."""
    if not re.fullmatch(r"\w+(\.\w+)+", text) or not _is_ours(text):
        return False
    path = root / text.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def _names_a_module(node: ast.JoinedStr) -> bool:
    """Return whether an f-string begins like f"launchers.{name}" and has nothing but names and dots."""
    parts = [str(part.value) for part in node.values if isinstance(part, ast.Constant)]
    return bool(parts) and _is_ours(parts[0]) and "." in parts[0] and bool(re.fullmatch(r"[\w.]+", "".join(parts)))


def _replace(lines: list[str], number: int, pattern: str, by: str) -> None:
    lines[number - 1], count = re.subn(pattern, by, lines[number - 1], count=1)
    assert count == 1, f"line {number}: {pattern}"
