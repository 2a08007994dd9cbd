"""compare.html, .md, .csv: their numbers are compare.json's, what is smuggled in stays text; and what to do next."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

from compare import Run, compare
from compare.figures import FIGURES
from compare.report.blocks import text_of
from compare.report.files import png, style, texts
from compare.report.page import advice, headline, summary
from compare.report.reproduce import launched
from compare.report.terminal import print_report
from metrics import shown
from metrics.bill import Prices, Terms
from parsers import Record
from parsers.given import given_of, with_given
from tests.compare.made import SCHEMA, TP2, compared, made, ran, repeats, silent, toy, vendor_run, without_steps

PRICES = Prices("USD", {"h100": 2.6, "mi300x": 1.9}, "2026-11", "quotes")
EVIL = "</td></code></pre><script>alert(1)</script> | `rm` [x](y) =1+1 \x1b[2J \ud800"


@dataclass
class Page(HTMLParser):
    """The page as a reader finds it: numbers with their place in the JSON, the text beside them, tags."""

    numbers: list[tuple[str, str, str]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    inside: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "br"):
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.inside.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.inside[-1:] == ["data"]:
            known = self.tags[-1][1]
            self.numbers.append((str(known["data-json"]), str(known["value"]), data))
        elif data.strip() and not {"svg", "style", "pre", "title"} & set(self.inside):
            self.text.append(data.strip())


def read(html: str) -> Page:
    page = Page()
    page.feed(html)
    page.close()
    assert page.inside == []
    return page


def made_files(*records: Record, terms: Terms | None = None, **question: Any) -> dict[str, str]:
    return texts(compared(*records, terms=terms, **question), ["runs", "-o", "out"])


@pytest.fixture(scope="module")
def vendors() -> dict[str, str]:
    """Return two vendors, three runs each, with the user's prices and a stretch of steps lost."""
    records = [vendor_run(p, h, s, 300) for p, h in (("nvidia", "h100"), ("amd", "mi300x")) for s in (1, 2, 3)]
    records[4] = without_steps(records[4], 100, 130)
    return made_files(*records, terms=Terms(tokens=15e12, prices=PRICES))


@pytest.fixture(scope="module")
def scaled() -> dict[str, str]:
    records = [vendor_run("nvidia", "h100", seed, 60, nodes) for nodes in (1, 2, 4) for seed in (1, 2, 3)]
    return made_files(*records, vary=("layout", "world_size", "training", "num_micro_batches"))


@pytest.mark.parametrize("of", ["vendors", "scaled"])
def test_every_number_equals_the_json_and_every_known_one_is_on_the_page(
    of: str, request: pytest.FixtureRequest
) -> None:
    out = request.getfixturevalue(of)
    result, page = json.loads(out["compare.json"]), read(out["compare.html"])
    jsonschema.validate(result, SCHEMA)
    assert len(page.numbers) > 100
    for pointer, value, text in page.numbers:
        there = at(result, pointer)
        assert there == float(value), pointer
        assert text in (shown(there), shown(there * 1e-9), f"{there:.3f}"), pointer
    expected = {f"/ratios/{i}/ratio" for i, r in enumerate(result["ratios"]) if r["ratio"] is not None}
    expected |= {f"/break_even/{i}/price/value" for i, _ in enumerate(result["break_even"])}
    expected |= {f"/scaling/{i}/gpus" for i, _ in enumerate(result["scaling"])}
    for i, group in enumerate(result["groups"]):
        known = {f.metric for f in FIGURES if group["figures"][f.metric]["value"] is not None}
        expected |= {f"/groups/{i}/{of}figures/{name}/value" for name in known for of in ("", "runs/0/")}
    assert expected <= {pointer for pointer, _, _ in page.numbers}


def test_numbers_in_the_words_are_the_jsons_too(vendors: dict[str, str]) -> None:
    """Reasons and notes are texts of compare.json; a number in them is not worked out again."""
    known = texts_of(json.loads(vendors["compare.json"]))
    page = read(vendors["compare.html"])
    title = max(i for i, text in enumerate(page.text) if text == "How to reproduce")
    for text in page.text[:title]:
        for number in re.findall(r"\d[\d,]*\.\d+|\d{4,}", text):
            assert any(number in one for one in known), (number, text)


def test_the_page_needs_nothing_from_elsewhere(vendors: dict[str, str]) -> None:
    page = read(vendors["compare.html"])
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "srcset", "style")], tag
        assert str(attributes.get("href", "#")).startswith("#")
    policy = next(a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert policy is not None and policy.startswith("default-src 'none'")
    assert "url(" not in vendors["compare.html"] and "@import" not in vendors["compare.html"]


def test_it_can_be_read_without_eyes(vendors: dict[str, str]) -> None:
    """See what axe cannot see without a browser; the rest is in test_browser.py."""
    tags = read(vendors["compare.html"]).tags
    names = [tag for tag, _ in tags]
    assert {"header", "nav", "main"} <= set(names)
    assert names.count("h1") == 1
    assert names.count("table") == names.count("caption")
    assert all(a.get("scope") in ("row", "col") for tag, a in tags if tag == "th")
    pictures = [a for tag, a in tags if tag == "svg" and a.get("role") == "img"]
    assert len(pictures) == 4
    assert all(len(str(a["aria-label"])) > 40 for a in pictures)
    assert all(a.get("role") == "img" or a.get("aria-hidden") == "true" for tag, a in tags if tag == "svg")
    levels = [int(name[1]) for name in names if re.fullmatch("h[1-6]", name)]
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_the_verdict_is_first_and_the_audit_before_any_figure(vendors: dict[str, str]) -> None:
    titles = [re.sub("<.*?>", "", title) for title in re.findall(r"<h[12][^>]*>(.*?)</h", vendors["compare.html"])]
    title = json.loads(vendors["compare.json"])["title"]
    escaped = title.replace("_", "\\_")
    wanted = [title, "✓ Comparable", "Curves", "Audit", "All figures", "Runs", "What was assumed", "How to reproduce"]
    assert titles == wanted
    assert vendors["compare.md"].startswith(
        f"# Comparable\n\n{escaped}\n\nAMD Instinct MI300X is slower than NVIDIA H100 80GB HBM3: 0.8"
    )


def test_of_what_is_not_comparable_there_is_no_ratio_anywhere() -> None:
    out = made_files(*repeats("a", (2.0, 2.1, 2.2)), *repeats("b", (1.0, 1.1, 1.2), {**TP2, "lr": 0.1}))
    page = read(out["compare.html"])
    assert not [p for p, _, _ in page.numbers if p.startswith(("/ratios", "/break_even", "/scaling"))]
    words = " ".join(page.text)
    assert "No ratio is given: lr: DP2 0.003; TP2 0.1" in words and "Indicative, not a ratio" in words
    assert 'class="of2 grey"' in out["compare.html"]
    assert "No ratio is given" in words
    for name in ("compare.html", "compare.md", "compare.csv"):
        assert not re.search(r"Against |times its|faster than|slower than|break-even with|\bratio,", out[name]), name


def test_what_is_unknown_is_reported_to_be() -> None:
    page = read(made_files(made("a"), silent(made("b", over=TP2), "seq_length"))["compare.html"])
    words = " ".join(page.text)
    assert "? Cannot tell side by side, without a ratio No ratio is given: seq_length: unknown" in words
    assert "seq_length: unknown, not reported by TP2" in words
    assert "Unknown in every group: " in words


def test_of_very_many_groups_a_page_shows_some_and_says_so() -> None:
    """61 MB of a thousand groups is a page that nobody opens."""
    many = [made(f"g{i}", 2 + i / 100, {"lr": 1e-4 * (i + 1)}) for i in range(120)]
    out = made_files(*many, vary=("lr",))
    assert len(out["compare.html"]) < 400_000
    said = "120 groups: shown are the baseline, the 16 fastest and the 4 slowest; half of all have "
    assert f"{said}138.3 to 174.1 tokens/s/GPU, and the median is 154.1. compare.csv has all." in out["compare.html"]
    assert {p for p, _, _ in read(out["compare.html"]).numbers} >= {"/groups/0/figures/tokens_per_s_per_gpu/value"}
    assert out["compare.csv"].count("\ngroup,") + out["compare.csv"].count("comparable,group,") >= 120
    alone = made_files(*(made(f"s{i}", over={"seed": i}) for i in range(300)))["compare.html"]
    assert len(alone) < 400_000 and "the first 200 of 300: compare.json has all" in alone


def test_a_toy_is_told_nothing_of_a_trillion_tokens() -> None:
    """1,815 days on two processors are of interest to nobody; typed tokens are."""
    html = made_files(made("a"), made("b", over=TP2))["compare.html"]
    assert not re.search(r"training time|GPU-hours of the training", html)
    asked = made_files(made("a"), made("b", over=TP2), terms=Terms(tokens=1e9, prices=PRICES))["compare.html"]
    assert "training time" in asked


def test_the_figures_that_decide_stand_above_curves_and_audit(vendors: dict[str, str]) -> None:
    top, _, rest = vendors["compare.html"].partition('<section id="curves"')
    ratios = [r["metric"] for r in json.loads(vendors["compare.json"])["ratios"]]
    for metric in ("tokens_per_s_per_gpu", "mfu_percent", "cost_per_trillion_tokens", "energy_j_per_token"):
        assert f"/ratios/{ratios.index(metric)}/ratio" in top and f"/groups/1/figures/{metric}/value" in top
    assert rest.index('<section id="audit"') < rest.index('<section id="figures"')
    assert "Unknown in every group" not in rest.partition("<summary>What figures are measured")[0]


def test_html_and_markdown_in_a_record_stay_text() -> None:
    dead = made("c", over={"lr": 1}, status="failed", cause=EVIL, last_lines=(EVIL,), notes=(EVIL,))
    evil = replace(made("b", over=TP2), id=EVIL, name=EVIL, image=EVIL, environment={EVIL: EVIL, "host": EVIL})
    out = made_files(made("a"), evil, dead)
    page = read(out["compare.html"])
    assert {"script", "img"} & {tag for tag, _ in page.tags} == set()
    assert any("<script>alert(1)</script>" in text for text in page.text)
    for name in ("compare.html", "compare.md", "compare.csv"):
        assert "\x1b" not in out[name]
        out[name].encode()
    assert "<script>alert(1)" not in out["compare.md"]
    assert "[x](y)" not in re.sub("<pre>.*?</pre>", "", out["compare.md"], flags=re.DOTALL)
    rows = [line for line in out["compare.md"].splitlines() if line.startswith("| ")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) in range(3, 20) for row in rows)


def test_the_csv_has_every_figure_in_full(vendors: dict[str, str]) -> None:
    result = json.loads(vendors["compare.json"])
    rows = list(csv.DictReader(StringIO(vendors["compare.csv"])))
    run = result["groups"][1]["runs"][2]
    for figure in FIGURES:
        row = next(r for r in rows if (r["run"], r["figure"]) == (run["id"], figure.metric))
        known = run["figures"][figure.metric]
        assert row["value"] == ("" if known["value"] is None else repr(known["value"]))
        assert (row["unit"], row["source"], row["note"]) == (known["unit"], known["source"], known.get("note", ""))
    ratios = [r for r in rows if r["what"] == "ratio"]
    assert [r["word"] for r in ratios] == [r["word"] for r in result["ratios"]]
    assert {r["verdict"] for r in rows} == {"comparable"}
    out = made_files(made("a"), replace(made("b", over=TP2), id="=cmd|' /C calc'!A0"))
    runs = {row["run"] for row in csv.DictReader(StringIO(out["compare.csv"]))}
    assert "'=cmd|' /C calc'!A0" in runs, "a spreadsheet would take it for a formula"


def test_scaling_is_against_linear_growth(scaled: dict[str, str]) -> None:
    result = json.loads(scaled["compare.json"])["scaling"]
    assert [(s["gpus"], s["smallest_gpus"]) for s in result] == [(8, 8), (16, 8), (32, 8)]
    assert result[0]["efficiency"] is None
    assert [s["efficiency"] for s in result[1:]] == pytest.approx([0.97, 0.9409], rel=1e-3)
    assert all(low < s["efficiency"] < high for s in result[1:] for low, high in [s["interval"]])
    assert "Dashed: linear growth" in scaled["compare.html"]


def test_how_a_run_was_started_is_shown(tmp_path: Path) -> None:
    plan = {"argv": ["python", "train me.py"], "env": {"A": "x y", "HF_TOKEN": "s3cret"}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "experiment.yaml").write_text("name: <b>\n")
    command, _ = launched(str(tmp_path))
    assert command == f"cd {tmp_path} && \\\n  A='x y' \\\n  HF_TOKEN=\"$HF_TOKEN\" \\\n  python 'train me.py'"
    runs = [Run(str(tmp_path), made("a")), Run("b", made("b", over=TP2))]
    files = texts(compare(runs), ["runs", "baseline=a b"])
    html = files["compare.html"]
    assert "python -m compare runs 'baseline=a b'" in unescape(html)
    assert "name: &lt;b&gt;" in html and "train me.py" in html
    assert "s3cret" not in html
    assert files == texts(compare(runs), ["runs", "baseline=a b"]), "the same records make the same files"
    for none in ("", "{", "[]", '{"argv": 1}', '{"argv": [1]}', '{"argv": []}', "\x00"):
        (tmp_path / "plan.json").write_text(none)
        assert launched(str(tmp_path))[0] is None


def at(result: Any, pointer: str) -> Any:
    for part in pointer.removeprefix("/").split("/"):
        result = result[int(part)] if isinstance(result, list) else result[part]
    return result


def texts_of(result: Any) -> list[str]:
    if isinstance(result, Mapping):
        return [text for value in result.values() for text in texts_of(value)]
    if isinstance(result, list):
        return [text for value in result for text in texts_of(value)]
    return [str(result)]


def test_an_estimate_stands_beside_and_says_so() -> None:
    estimate = replace(made("c", 1.0, over={"lr": 1}), provenance="estimated")
    out = made_files(*repeats("a", (2.0, 2.1, 2.2)), *repeats("b", (1.0, 1.1, 1.2), TP2), estimate)
    page, result = read(out["compare.html"]), json.loads(out["compare.json"])
    label = result["groups"][2]["label"]
    assert f"{label} (estimated)" in page.text
    assert "/groups/2/figures/tokens_per_s/value" in {pointer for pointer, _, _ in page.numbers}
    assert label not in [ratio["group"] for ratio in result["ratios"]]


def test_rehearsed_runs_have_curves_and_no_speed() -> None:
    toys = [toy(name, more) for name, more in (("a", {}), ("b", TP2))]
    html = made_files(*toys)["compare.html"]
    page = read(html)
    assert page.numbers == []
    assert "Rehearsed: nothing was measured." in page.text
    assert "Loss at equal tokens" in page.text
    assert "Step time" not in page.text
    assert html.count("one run, <span") == 2
    many = made_files(*(replace(made(f"g{i}", over={"lr": i}), provenance="rehearsed") for i in (1, 2, 3, 4)))
    assert many["compare.html"].count("one run, <span") == 4, "what ran stands there without any figure"
    measured = made_files(made("c", over={"lr": 1}), *toys)["compare.html"]
    assert (measured.count("one run, <span"), measured.count("0 of 1 runs")) == (1, 0)


def test_the_picture_takes_any_text() -> None:
    """A dollar sign is no formula to it, and a label may hold anything."""
    evil = replace(made("b", over=TP2), name=EVIL, hardware="$x_1$ \x07")
    for result in (compared(made("a"), evil), compared(made("c", steps=(), status="failed"))):
        assert png(result).startswith(b"\x89PNG")
    assert "var(" not in style() and "#004f97" in style(), "a name of a colour would be drawn black"


def test_of_what_was_given_the_page_repeats_what_was_typed() -> None:
    """Not the settings that a model stands for; typed again, it gives the same record."""
    plain = replace(made("b", over=TP2), provenance="imported", log="a log.txt", requested={}, effective={})
    read_ = with_given(plain, given_of(["model=llama31_8b", "precision=bf16", "norm_epsilon=0.1", "name=a b"]))
    assert "num_layers" in read_.given
    html = unescape(made_files(made("a"), read_)["compare.html"])
    typed = "model=llama31_8b precision=bf16 'name=a b' norm_epsilon=0.1"
    assert f"python -m parsers 'a log.txt' --save {typed}<" in html
    assert "num_layers: 32 (given)" in html, "among the settings"
    elsewhere = replace(read_, given={"model": "of_another_version", "lr": 1})
    assert "--save model=of_another_version lr=1" in made_files(made("a"), elsewhere)["compare.html"]


def test_what_no_group_reports_is_no_difference() -> None:
    """Off in both, it may differ, and is not seen to."""
    records = [silent(made("a"), "recompute_method"), silent(made("b", over=TP2), "recompute_method")]
    result = compared(*records)
    (row,) = (r for r in result.audit.rows if r.setting == "recompute_method")
    assert (row.state, set(row.values.values())) == ("allowed", {None})
    differences, _, folded = made_files(*records)["compare.md"].partition("**Differences**")[2].partition("<details>")
    assert "recompute" not in differences.partition("\n\n**")[0]
    assert "recompute\\_method" in folded
    stream = StringIO()
    print_report(summary(result), stream)
    assert "recompute" not in stream.getvalue()


def next_of(records: Sequence[Record], **question: Any) -> list[str]:
    return [text_of(step) for step in advice(compared(*records, **question))]


FAST, SLOW = repeats("a", (2.0, 2.02, 1.98)), repeats("b", (2.5, 2.52, 2.49), TP2)


def test_an_answered_question_has_nothing_next() -> None:
    assert next_of([*FAST, *SLOW]) == []


def test_what_differs_is_named_with_the_words_that_accept_it() -> None:
    other = repeats("b", (2.5, 2.52, 2.49), {**TP2, "lr": 0.1})
    expected = "Or compare it, vary=layout,lr; or accept what is meant to differ: accept.lr=REASON"
    assert next_of([*FAST, *other]) == [expected]
    assert next_of([*FAST, *other], vary=("layout", "lr")) == []
    assert next_of([*FAST, *other], accept={"lr": "tuned by each"}) == []


def test_what_did_not_run_as_requested_is_no_difference_to_vary() -> None:
    """On both sides alike: neither running the groups alike nor vary= helps."""
    both = [ran(record, adam_eps=7) for record in (*FAST, *SLOW)]
    assert next_of(both) == ["Or accept what is meant to differ: accept.adam_eps=REASON"]
    assert {step.because for step in compared(*both).reruns} == {"adam_eps requested as it ran, or run as requested"}
    assert next_of(both, vary=("layout", "adam_eps")) == next_of(both)
    assert next_of(both, accept={"adam_eps": "known"}) == []
    assert text_of(headline(compared(*both))[0]).startswith("No ratio is given: not all that was requested ran; ")
    one = [*FAST, *(ran(record, adam_eps=7) for record in repeats("b", (2.5, 2.52, 2.49), {**TP2, "lr": 0.1}))]
    (step,) = next_of(one)
    assert step.startswith("Or compare it, vary=layout,lr; or accept") and "accept.adam_eps" in step


def test_what_is_unknown_can_be_stated_or_accepted() -> None:
    (step,) = next_of([made("a"), silent(made("b", over=TP2), "seq_length", "lr", "adam_eps", "adam_beta1")])
    assert step.startswith("Or accept what is unknown: accept.KEY=REASON"), "four keys: no command is spelled out"


def test_too_few_and_undecided_runs_want_repeats() -> None:
    assert next_of([made("a"), made("b", over=TP2)]) == [
        "Repeat the runs with other seeds: from 3 a side on there is an interval."
    ]
    wide = [*repeats("a", (2.0, 2.2, 1.8)), *repeats("b", (2.1, 2.3, 1.95), TP2)]
    result = compared(*wide)
    speed = next(item for item in result.ratios if item.metric == "tokens_per_s_per_gpu")
    assert speed.runs_to_decide
    (step,) = advice(result)
    about = f"about {speed.runs_to_decide} a side would decide"
    assert about in text_of(step)
    (sentence,) = headline(result)
    assert text_of(sentence).startswith("Undecided whether TP2 is faster than DP2: 0.9")


def test_one_group_a_rehearsal_and_no_completed_run() -> None:
    assert next_of([made("a")]) == ["Name the runs of another group as well: of another platform, layout or image."]
    toys = [toy(name, more) for name, more in (("a", {}), ("b", TP2))]
    assert next_of(toys) == ["Run it for real, without rehearse=: a rehearsal has no speed."]
    dead = [made("a", status="failed"), made("b", over=TP2, status="failed")]
    assert next_of(dead) == [] and {step.because for step in compared(*dead).reruns} == {"a run that counts"}
    open_ = [made("a"), made("b", over=TP2, status="unknown", provenance="imported")]
    assert next_of(open_) == [], "to accept a setting would change nothing"


def test_money_is_spoken_of_at_the_users_prices_alone() -> None:
    records = [vendor_run(p, h, seed, 30) for p, h in (("nvidia", "h100"), ("amd", "mi300x")) for seed in (1, 2, 3)]
    prices = Prices("USD", {"h100": 2.6, "mi300x": 1.9})
    yours = compared(*records, terms=Terms(tokens=1e12, prices=prices))
    assert re.search(r"; a token costs 0\.8\d\d times as much \(.*\) at your prices\.$", text_of(headline(yours)[0]))
    assert [*advice(yours)] == []
    ours = compared(*records, terms=Terms(tokens=1e12, prices=dataclasses.replace(prices, example=True)))
    assert "costs" not in text_of(headline(ours)[0])
    wanted = "price.usd_per_gpu_hour.h100=… price.usd_per_gpu_hour.mi300x=…"
    assert [text_of(step) for step in advice(ours)] == [f"Give your own prices, of which ours are an example: {wanted}"]
