"""Make the pages of the site that would otherwise be written twice: tables of conf/, the commands' help, texts of ours.

A hook of mkdocs (mkdocs.yml). Nothing of it is kept in git."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to those that stand in docs/."""
    sys.path.insert(0, str(ROOT))  # here, since mkdocs takes back what a hook does to it when it is loaded
    for name, page in PAGES.items():
        files.append(File.generated(config, name, content=page()))
    return files


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table; None is an empty cell."""

    def line(cells: Iterable[object]) -> str:
        texts = ("" if cell is None else str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells)
        return "| " + " | ".join(texts) + " |\n"

    columns = list(header)
    return line(columns) + line("---" for _ in columns) + "".join(line(row) for row in rows)


def settings() -> str:
    """Return the page of all settings, one table a kind."""
    from conf.vocabulary import vocabulary

    rows: dict[str, list[list[object]]] = {}
    for name, row in vocabulary().items():
        places = {stack: ", ".join(f"`{target.path}`" for target in write.to) for stack, write in row.write.items()}
        reasons = {stack: write.program or write.derived or write.cannot for stack, write in row.write.items()}
        written = "; ".join(f"{stack}: {places[stack] or reasons[stack]}" for stack in places)
        printed = ", ".join(f"{stack}: `{', '.join(row.keys(stack))}`" for stack in row.print)
        request = f"`{row.request}`" if row.request else None
        rows.setdefault(row.kind, []).append([f"`{name}`", row.rank, row.unit, request, row.only_if, written, printed])
    header = (
        "setting",
        "a difference",
        "unit",
        "in the experiment",
        "only with",
        "written for other stacks as",
        "printed by them as",
    )
    parts = "".join(f"\n## {kind}\n\n{table(header, body)}" for kind, body in rows.items())
    return (
        "# Settings that decide a comparison\n\nEvery one has one name, Megatron's, in plans, records and verdicts. "
        "What stands in the experiment as `training.KEY`, `optimizer.KEY`, `layout.KEY` or `model.KEY` is given on the "
        "command line by that path. Where no other name is given, a stack is given it under this one, and dumps of "
        "Megatron's family print it under this one; the others do not print it.\n\nWhere a setting that *breaks* "
        "differs, the work is another; one that *shifts* does the same work otherwise; *bookkeeping* changes nothing "
        "that is measured.\n" + parts
    )


def models() -> str:
    """Return the page of models, with the parameter counts of our own formula."""
    from tensorprimat.lists import model_rows

    return "# Models\n\nOne file each in `conf/model/`, for `model=`.\n\n" + _listed(model_rows())


def gpus() -> str:
    """Return the page of GPUs: memory, dense peaks and where each figure is from."""
    from tensorprimat.lists import gpu_rows

    text = "# GPUs\n\nPeaks are dense TFLOP/s. `measured_bf16` is the best matrix product that was published.\n\n"
    return text + _listed(gpu_rows())


def _listed(rows: Iterable[Mapping[str, object]]) -> str:
    from tensorprimat.lists import cell

    known = list(rows)
    return table(known[0], (map(cell, row.values()) for row in known))


def commands() -> str:
    """Return the page of every command's own help."""
    from tensorprimat.cli import commands as every

    sys.argv = ["tprimat docs"]  # by which a help says how it is called: not as in a checkout
    text = "# Commands\n\nIn a checkout also `python launch.py` and `python -m parsers`, `metrics` and `compare`.\n"
    for one in sorted(every(), key=lambda one: one.name):
        text += f"\n## tprimat {one.name}\n\n```text\n{one.help().rstrip()}\n```\n"
    return text


def copied(path: str) -> Callable[[], str]:
    """Return a function that reads a text of this repository."""
    return lambda: (ROOT / path).read_text(encoding="utf-8")


PAGES: Mapping[str, Callable[[], str]] = {
    "reference/settings.md": settings,
    "reference/models.md": models,
    "reference/gpus.md": gpus,
    "reference/commands.md": commands,
    "reference/logs.md": copied("parsers/README.md"),
    "contributing.md": copied("CONTRIBUTING.md"),
    "changelog.md": copied("CHANGELOG.md"),
}
