"""Build the wheel: all of ours below one package, `tensorprimat`, and every import of ours written accordingly.

In a checkout our folders are packages by themselves (`from conf.errors import Problem`). Installed like that they would
meet a user's own `conf/` or `metrics.py`. So a wheel has them in tensorprimat/_app/, and its modules say
`from tensorprimat._app.conf.errors import Problem`.

Beside its metadata the wheel has a bill of materials (PEP 770, CycloneDX) of what the lock files were resolved to."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterable
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
LOCKS = ("lock.txt", "lock-torch.txt")
# Of each entry: name, version, marker, and the comments below it, which name what needs it.
_LOCKED = re.compile(r"^([\w.-]+)==([^ \n]+)(?: ; (.*?))? \\\n(?: +--hash.*\n)*((?: +#.*\n)*)", re.MULTILINE)
_VIA = re.compile(r"# +(?:via )?(?!via$)([a-z][\w.-]*)", re.MULTILINE)


class OneName(BuildHookInterface):
    """Puts the rewritten tree and the bill of materials into the wheel. An editable installation is the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self.made = Path(tempfile.mkdtemp(prefix="tensorprimat-wheel-"))
        tree(Path(self.root), self.made / PACKAGE)
        build_data["force_include"][str(self.made / PACKAGE)] = PACKAGE
        requirements = self.metadata.core.dependencies_complex.values()
        needed = (re.sub(r"[-_.]+", "-", one.name).lower() for one in requirements)
        bill = self.made / f"{PACKAGE}.cdx.json"
        found = materials(Path(self.root), self.metadata.version, needed)
        bill.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        build_data["sbom_files"].append(str(bill))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(getattr(self, "made", ""), ignore_errors=True)


def tree(root: Path, target: Path) -> None:
    """Copy the package of the checkout `root` to `target` as a wheel has it."""
    skipped = shutil.ignore_patterns("__pycache__", "*.pyc", CHECKOUT_ONLY)
    shutil.copytree(root / PACKAGE, target, ignore=skipped)
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


def materials(root: Path, version: str, needed: Iterable[str]) -> dict[str, Any]:
    """Return a CycloneDX 1.6 bill of materials: this package, and what the lock files of `root` have for it and for its
    engine. needed: names of what it cannot do without; that and what that needs is required, all else optional. None of
    it is in the wheel itself."""
    text = "".join((root / "requirements" / name).read_text(encoding="utf-8") for name in LOCKS)
    locked = [(*entry[:3], {*_VIA.findall(entry[3])}) for entry in _LOCKED.findall(text)]
    required, reached = {*needed}, set[str]()
    while required - reached:
        reached |= required
        required |= {name for name, _, _, by in locked if by & reached}
    components = [
        {
            **_component("library", name, number),
            "scope": "required" if name in required else "optional",
            "properties": [{"name": f"{PACKAGE}:marker", "value": marker}] if marker else [],
        }
        for name, number, marker, _ in locked
    ]
    ours = _component("application", PACKAGE, version)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "lifecycles": [{"phase": "build"}],
            "component": {**ours, "licenses": [{"license": {"id": "Apache-2.0"}}]},
        },
        "components": components,
        "dependencies": [
            {
                "ref": one["bom-ref"],
                "dependsOn": [
                    other["bom-ref"] for other, (*_, by) in zip(components, locked, strict=True) if one["name"] in by
                ],
            }
            for one in (ours, *components)
        ],
    }


def _component(kind: str, name: str, version: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    return {"type": kind, "name": name, "version": version, "bom-ref": purl, "purl": purl}
