"""compare.html as Chromium shows it: on a laptop, a phone and paper, light and dark, by keyboard, and to axe-core.

Needs node, and what make test puts into .venv where it can: playwright-core and axe-core, and Chromium, if the machine
has none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from compare import Run
from compare.comparison import compare
from compare.groups import Question
from compare.report.files import texts
from metrics.bill import Prices, Terms
from parsers import Reading, Record
from tests.compare.made import TP2, broken, made, vendor_run, without_steps

HERE = Path(__file__).parent
MODULES = Path(os.environ.get("NODE_MODULES", HERE.parents[1] / ".venv" / "node_modules"))
BROWSERS = [*(MODULES.parent / "browsers").glob("chromium*/*/*headless*shell")]
THERE = (os.environ.get("CHROMIUM"), shutil.which("chromium"), shutil.which("chromium-browser"), *BROWSERS)
CHROMIUM = next(filter(None, THERE), None)
MISSING = [
    *([] if CHROMIUM else ["chromium (make npm, or apt install chromium)"]),
    *([] if shutil.which("node") else ["node"]),
    *(f"{name} (make npm)" for name in ("playwright-core", "axe-core") if not (MODULES / name).is_dir()),
]
pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")]
PRICES = Prices("USD", {"h100": 2.6, "mi300x": 1.9})
LONG = "a-name-without-any-place-to-break-" * 4


def large() -> list[Record]:
    """Return 12 runs of 1,000 steps, in four groups that differ in vendor and GPUs; with lost steps."""
    cases = [(p, h, n) for p, h in (("nvidia", "h100"), ("amd", "mi300x")) for n in (1, 2)]
    runs = [vendor_run(p, h, seed, 1000, n) for p, h, n in cases for seed in (1, 2, 3)]
    runs[4] = without_steps(runs[4], 400, 470)
    return runs


def hostile() -> list[Record]:
    """Not comparable, with nan, HTML, and names that break no line."""
    dead = made("c", over={"lr": 1}, status="failed", cause=f"<script>1</script> {LONG}", last_lines=(LONG * 3,))
    other = replace(broken(made("b", over={**TP2, "lr": 0.1}), 3), id=LONG, image=f"<b>{LONG}")
    return [made("a"), other, dead]


def small() -> list[Record]:
    """Return every section and picture that there is, in little; the larger groups with another learning rate."""
    runs = [vendor_run("nvidia", "h100", seed, 40, nodes) for nodes in (1, 2) for seed in (1, 2, 3)]
    other = {"lr": 0.00042}
    return runs[:3] + [
        replace(r, requested={**r.requested, **other}, effective={**r.effective, "lr": Reading(0.00042, 3)})
        for r in runs[3:]
    ]


SCALED = Question(vary=("platform", "layout", "world_size", "training", "num_micro_batches"))
# Records, what they are over, and the colour schemes in which axe looks at them: of the large page that takes half a
# minute, and it has nothing that the small one has not.
PAGES: dict[str, tuple[Callable[[], list[Record]], Question, str]] = {
    "large": (large, SCALED, ""),
    "small": (small, replace(SCALED, accept={"lr": "the team of each stack tuned it, " * 12}), "light,dark"),
    "hostile": (hostile, Question(), "light"),
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what browser.mjs saw of each page; pictures and PDFs of them are in $BROWSER_OUT, if that is set."""
    directory = tmp_path_factory.mktemp("pages")
    for name, (records, question, _) in PAGES.items():
        runs = [Run(f"runs/{record.id}", record) for record in records()]
        comparison = compare(runs, question, Terms(tokens=15e12, prices=PRICES))
        (directory / f"{name}.html").write_text(texts(comparison, ["runs"])["compare.html"], encoding="utf-8")
    pages = [f"{schemes}={directory / name}.html" for name, (_, _, schemes) in PAGES.items()]
    argv = ["node", str(HERE / "browser.mjs"), str(CHROMIUM), str(MODULES), os.environ.get("BROWSER_OUT", ""), *pages]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return {Path(path).stem: result for path, result in json.loads(done.stdout).items()}


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest, seen: dict[str, Any]) -> dict[str, Any]:
    return dict(seen[request.param])


def test_it_opens_by_itself_and_at_once(page: dict[str, Any]) -> None:
    assert page["console"] == []
    assert [Path(request).suffix for request in page["requests"]] == [".html"]
    assert page["open_ms"] < 5000, "0.3 s on an idle machine; this bound only catches a page that is far too heavy"


def test_axe_finds_nothing(seen: dict[str, Any]) -> None:
    """Contrast, landmarks, names, tables, order of headings: all rules of axe-core, with every list unfolded."""
    assert seen["small"]["axe"] == {"light": [], "dark": []}
    assert seen["hostile"]["axe"] == {"light": []}


def test_it_fits_a_laptop_a_phone_and_a4(page: dict[str, Any]) -> None:
    """Wide tables scroll by themselves."""
    assert (page["width"], page["phone_width"], page["print_width"]) == (1366, 390, 688)


def test_the_keyboard_leads_to_the_verdict(page: dict[str, Any]) -> None:
    assert [at["text"] for at in page["tabs"]][:2] == ["Skip to the verdict", "Verdict"]
    assert all(at["seen"] and at["outline"] == "solid" for at in page["tabs"])
    assert page["skipped_to"] == "verdict"
