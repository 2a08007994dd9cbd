"""Samples into figures: figures that are known beforehand come out again, whatever the noise and the order."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as with_values

from conf import load_experiment
from conf.devices import NO_DEVICES
from conf.errors import ConfigError
from conf.machine import VERSION, Factor, Figure, Machine, Training, read, write
from estimate import cli, step_time
from estimate.experiment import columns_of
from estimate.figures import estimate
from estimate.fitted import shipped
from estimate.headroom import headroom
from estimate.of_machine import CALLS, CROWDED, learned, trained
from measure import session
from measure.cases import DTYPES, LAYERS, Case, Scope, cases, flops_of, group_of, moved_bytes, visits
from measure.parameters import parameters, shares_of
from measure.rates import figures, incomplete, samples_of
from measure.trainings import LEAST, Done, overrides, with_trainings
from metrics.shape import shape_of_model

SMALL = Scope(accelerator=False, ranks=2, cores=2, memory_bytes=8 << 30, full=False)
RATE, ROWS, WIDTH, LAUNCH = 5e10, 12.0, 7.0, 4e-6
LATENCY, LINK = 3e-4, 1.5e9
BESIDE = 5.0
"""By how much longer a collective takes to begin where other groups of the node have theirs."""


def seconds_of(case: Case) -> float:
    """Return the time of a case on a machine that is exactly as the formulas say."""
    if case["kind"] == "gemm":
        m, n, k = (float(case[name]) for name in "mnk")
        return LAUNCH + 2 * m * n * k * (1 + ROWS / m + WIDTH / n + WIDTH / k) / RATE
    if "bytes" in case and case["kind"] not in ("overlap", "save", "load"):
        ranks = group_of(case)
        share = {"all_reduce": 2 * (ranks - 1) / ranks, "send": 1.0}
        latency = LATENCY * (1 if ranks == case["ranks"] else BESIDE)
        one_way: float = latency + share.get(case["kind"], (ranks - 1) / ranks) * case["bytes"] / LINK
        return 2 * one_way if case["kind"] == "send" else one_way
    return 1e-6 + flops_of(case) / RATE + moved_bytes(case) / 1e10


def lines_of(known: tuple[Case, ...], rounds: int = 5, noise: float = 0.0) -> list[dict[str, Any]]:
    generator = np.random.default_rng(1)
    return [
        {
            "case": i,
            "round": turn,
            "rank": rank,
            "seconds": float(seconds_of(case) * np.exp(noise * generator.normal())),
        }
        for turn in range(rounds)
        for i, case in enumerate(known)
        for rank in case.get("pair", range(case["ranks"]))
    ]


@cache
def machine(device: str = "AMD EPYC", accelerator: bool = False, noise: float = 0.0, scope: Scope = SMALL) -> Machine:
    known = cases(scope)
    found = tuple(figures(samples_of(known, lines_of(known, noise=noise), scope.ranks)))
    return Machine(
        VERSION, "2026-11-24T00:00:00+00:00", "host", device, accelerator, scope.ranks, scope.cores, {}, found
    )


def test_a_machine_that_is_as_the_formulas_say_gives_their_constants() -> None:
    known = machine()
    of: dict[str, int | str] = {"ranks": 2, "precision": "fp32"}
    expected = {"gemm_rate": RATE, "gemm_rows": ROWS, "gemm_width": WIDTH, "gemm_launch": LAUNCH}
    assert {name: known.value(name, **of) for name in expected} == pytest.approx(expected, rel=1e-6)
    assert known.value("all_reduce_rate", ranks=2) == pytest.approx(LINK)
    assert known.value("all_reduce_latency", ranks=2) == pytest.approx(LATENCY)
    assert known.value("send_rate", first=0, second=1) == pytest.approx(LINK)  # one way of the two


def test_attention_has_a_figure_of_each_kernel_number_of_heads_and_mask() -> None:
    known = [one for one in machine().figures if one.name == "sdpa_rate"]
    ways = {(one.of["backend"], one.of["heads"], one.of["causal"]) for one in known}
    assert ways == {*product(("flash", "math"), (8, 32), (0, 1))}
    on_gpu = cases(Scope(accelerator=True, ranks=1, cores=8, memory_bytes=80 << 30, full=True))
    assert {case["backend"] for case in on_gpu if case["kind"] == "sdpa"} == {"flash", "efficient", "cudnn", "math"}
    masked, whole = (next(c for c in cases(SMALL) if c["kind"] == "sdpa" and c["causal"] == n) for n in (1, 0))
    assert flops_of(whole) == 2 * flops_of(masked) == 4 * 8 * masked["seq"] ** 2 * masked["channels"]


def test_full_has_kernels_of_attention_at_a_second_length() -> None:
    for full, lengths in ((False, {256}), (True, {128, 256})):
        known = [case for case in cases(replace(SMALL, full=full)) if case["kind"] == "sdpa"]
        assert {case["seq"] for case in known} == lengths
        ways = [(case["seq"], case["backend"], case["heads"], case["causal"], case["dtype"]) for case in known]
        assert len(ways) == len(set(ways)) == len(lengths) * 2 * 2 * 2 * 2


@pytest.mark.parametrize(("accelerator", "name"), [(True, "llama31_8b"), (False, "llama_tiny")])
def test_products_of_a_model_s_layers_are_timed_and_count_in_the_fit(accelerator: bool, name: str) -> None:
    one = shape_of_model(load_experiment("platform=cpu", f"model={name}").model)
    heads, hidden, ffn = (one.num_attention_heads + 2 * one.num_query_groups), one.hidden_size, one.ffn_hidden_size
    own = {layer: (n, k) for layer, (_, n, k) in LAYERS[accelerator].items()}
    assert own["qkv"] == (heads * one.kv_channels, hidden)
    assert own["projection"] == (hidden, one.num_attention_heads * one.kv_channels)
    assert (own["fc1"], own["fc2"]) == ((2 * ffn, hidden), (hidden, ffn))
    assert own["output"] == (one.vocabulary, hidden)
    known = cases(Scope(accelerator, 1, 8, 80 << 30, full=True))
    products = [(case["dtype"], case["m"], case["n"], case["k"]) for case in known if case["kind"] == "gemm"]
    assert len(products) == len(set(products))  # none is timed twice
    found = [*figures(samples_of(known, lines_of(known), 1))]
    assert {str(one.of["layer"]) for one in found if one.name == "layer_rate"} == {*LAYERS[accelerator]}
    fit = next(
        one for one in found if one.name == "gemm_rate" and one.of["precision"] == ("bf16" if accelerator else "fp32")
    )
    assert fit.cases == 4**3 + 5
    assert not [case for case in cases(Scope(accelerator, 1, 8, 80 << 30, full=False, probe=True)) if "layer" in case]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("accelerator", [False, True])
def test_what_an_all_reduce_hides_behind_a_product_is_beside_the_two_alone(accelerator: bool, full: bool) -> None:
    known = cases(Scope(accelerator, 4, 8, 80 << 30, full))
    lines = lines_of(known)
    for line in lines:
        case = known[line["case"]]
        line["seconds"] = {"gemm": 3.0, "all_reduce": 2.0, "overlap": 3.5}.get(case["kind"], 1.0)
    found = {one.of["ranks"]: one for one in figures(samples_of(known, lines, 4)) if one.name == "overlap_hidden"}
    assert {ranks: one.value for ranks, one in found.items()} == {2: 0.75, 4: 0.75}
    assert found[4].interval == (0.75, 0.75)


def test_the_knee_of_the_roofline_is_the_best_product_over_triad() -> None:
    known = machine(noise=0.05)
    found = [one for one in known.figures if one.name == "roofline_knee"]
    assert {(one.of["ranks"], one.of["precision"]) for one in found} == {*product((1, 2), ("fp32", "bf16"))}
    for one in found:
        best, rate = (known.value(name, **one.of) for name in ("gemm_best", "triad_rate"))
        assert best and rate and one.value == pytest.approx(best / rate)
        assert one.interval is not None and one.interval[0] < one.value < one.interval[1]


def test_the_share_of_a_data_sheet_s_peak_is_of_the_best_product() -> None:
    known = machine(noise=0.05)
    (found, _) = shares_of(known, {"fp32": 4 * RATE})
    best = next(one for one in known.figures if one.name == "gemm_best" and one.of == found.of)
    assert (found.name, found.value) == ("peak_share", best.value / 4 / RATE)
    assert best.interval is not None and found.interval == pytest.approx([end / 4 / RATE for end in best.interval])
    assert not [*shares_of(known, {})]


def test_attention_of_a_cpu_is_of_whole_blocks_as_estimate_has_it() -> None:
    """Be a CPU whose blocks are those of torch: what is fitted is exact, and estimate follows it over the length."""
    rate, tokens, channels = 1e11, 150.0, 20.0

    def block_s(seq: int, width: int, heads: int = 8) -> float:
        queries = 32 if seq < 192 else 64 if seq < 768 else 256
        products = sum(
            4 * min(512, seq) * min(queries, seq) * width * heads * (1 + at * queries // 512)
            for at in range(-(-seq // queries))
        )
        return products * (1 + tokens / 4 / queries + channels / width) / rate

    known = cases(SMALL)
    lines = lines_of(known)
    for line in lines:
        case = known[line["case"]]
        if case["kind"] == "attention":
            line["seconds"] = 5e-5 + block_s(case["seq"], case["channels"]) * (1 + 2.5 * case["backward"])
    found = {one.name: one.value for one in figures(samples_of(known, lines, 2)) if one.of.get("precision") == "fp32"}
    assert found["attention_rate"] == pytest.approx(rate, rel=1e-6)
    assert found["attention_tokens"] == pytest.approx(tokens, rel=1e-6)
    assert found["attention_channels"] == pytest.approx(channels, rel=1e-6)
    own = with_values(machine(), figures=tuple(figures(samples_of(known, lines, 2))))
    words = ("platform=cpu", "model=llama_tiny", "model.max_position_embeddings=1024")
    lengths = (128, 256, 512, 1024)
    every = [estimate(load_experiment(*words, f"training.seq_length={seq}"), machine=own) for seq in lengths]
    times = np.array([one.time.parts.attention[0] for one in every])
    wanted = np.array([block_s(seq, 16) for seq in lengths])
    assert times / times[0] == pytest.approx(wanted / wanted[0], rel=1e-6)


def test_noise_widens_the_intervals_around_the_truth() -> None:
    for one in machine(noise=0.05).figures:
        if one.name in ("gemm_rate", "all_reduce_rate"):
            assert one.interval is not None
            low, high = one.interval
            truth = RATE if one.name == "gemm_rate" else LINK
            assert low <= one.value <= high
            assert low * 0.95 <= truth <= high * 1.05


def test_a_figure_that_some_rounds_leave_open_has_no_interval() -> None:
    known = cases(SMALL)
    lines = lines_of(known)
    for line in lines:
        if known[line["case"]]["kind"] == "attention" and line["round"] >= 3:
            line["seconds"] = 1e-3  # of any size: no rate follows
    found = [one for one in figures(samples_of(known, lines, 2)) if one.name == "attention_rate"]
    assert found
    assert all(one.interval is None and np.isfinite(one.value) for one in found)


def test_two_rounds_are_too_few_for_an_interval_and_a_case_without_seconds_gives_no_figure() -> None:
    known = cases(SMALL)
    lines = lines_of(known, rounds=2)
    assert all(one.interval is None for one in figures(samples_of(known, lines, 2)))
    gone = [line for line in lines if known[line["case"]]["kind"] != "adam"]
    assert "adam_rate" not in {one.name for one in figures(samples_of(known, gone, 2))}


def test_figures_of_no_whole_round_are_named_with_the_reason() -> None:
    known = cases(SMALL)
    late = max(i for i, case in enumerate(known) if case["kind"] == "gemm" and case["ranks"] == 1)
    lines = [line for line in lines_of(known) if line["case"] != late]
    samples = samples_of(known, lines, 2)
    why = incomplete(samples, ())
    precision = DTYPES[known[late]["dtype"]][0]
    count = next(one.cases for one in machine().figures if one.name == "gemm_best" and one.of["precision"] == precision)
    assert why["gemm_best"].startswith(
        f"no round timed all cases of ranks=1 precision={precision} ({count - 1} of {count}):"
    )
    assert {*why} >= {"gemm_rate", "roofline_knee"}
    assert "adam_rate" not in why
    assert not incomplete(samples_of(known, lines_of(known), 2), ())
    assert not incomplete(samples, {late})  # which torch refused: that reason is its own
    nothing = incomplete(samples_of(known, [], 2), ())
    assert {*nothing} >= {one.name for one in machine().figures}  # each is said, of links, too


@pytest.mark.parametrize("cores", [1, 2, 8, 16, 64])
def test_quick_has_time_for_several_rounds_on_any_cpu(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "cores_here", lambda: cores)
    scope = session.scope_of(NO_DEVICES, None, "quick")
    assert scope.ranks == min(8, 2 * cores)
    _, minutes = session.SIZES["quick"]
    assert sum(case["least_s"] for case in cases(scope)) < session.OF_KERNELS * 60 * minutes / 5


@given(st.integers(1, 30), st.integers(1, 6), st.data())
def test_every_visit_is_made_once_in_all(count: int, rounds: int, data: st.DataObject) -> None:
    every = visits(count, rounds, {})
    done = data.draw(st.sets(st.sampled_from(every)))
    left = visits(count, rounds, dict.fromkeys(done, True))
    assert sorted([*left, *done]) == sorted(every) == [(turn, i) for turn in range(rounds) for i in range(count)]
    assert [visit[0] for visit in left] == sorted(visit[0] for visit in left)  # round after round


def test_nothing_needs_more_than_half_of_the_memory_of_a_rank() -> None:
    scope = Scope(accelerator=True, ranks=8, cores=64, memory_bytes=2 << 30, full=True)
    assert max(3 * moved_bytes(case) for case in cases(scope)) < scope.memory_bytes / 2
    assert {case["ranks"] for case in cases(scope)} == {1, 2, 4, 8}


def test_a_file_is_read_as_it_was_written_and_refused_when_it_was_changed(tmp_path: Path) -> None:
    path, known = tmp_path / "machine.yaml", machine()
    write(path, known)
    assert read(path) == known
    text = path.read_text(encoding="utf-8")
    wrong = {
        "was changed after it was measured": text.replace("AMD EPYC", "AMD EPYC 2"),
        "of another version": text.replace(f"version: {VERSION}", "version: 99"),
        "version\n    found: 4\n    allowed: 5": text.replace(f"version: {VERSION}", "version: 4").replace(
            "cores:", "no:"
        ),
        "is not valid YAML": "[",
        "is not a mapping": "- version: 1",
        "is not what `measure` writes, or a part of it\n    found: Expected `bool`": text.replace(
            "accelerator: false", "accelerator: maybe"
        ),
    }
    for number, (said, changed) in enumerate(wrong.items()):
        other = tmp_path / f"{number}.yaml"
        other.write_text(changed, encoding="utf-8")
        with pytest.raises(ConfigError, match=said):
            read(other)


def test_an_estimate_takes_the_machine_in_place_of_priors() -> None:
    e = load_experiment("platform=cpu", "model=llama_tiny", "gpus_per_node=2", "layout.tensor_model_parallel_size=2")
    found = estimate(e, machine=machine()).time.parts
    slower = with_values(machine(), figures=tuple(slowed(one) for one in machine().figures))
    assert estimate(e, machine=slower).time.parts.gemm[0] == pytest.approx(2 * found.gemm[0], rel=0.01)
    # four all-gathers and reduce-scatters a layer, one way, of which a share is exposed
    assert found.tensor_parallel[0] > 8 * 4 * 4 * LATENCY * 0.5


def test_collectives_of_groups_side_by_side_are_those_of_a_layout_that_has_several() -> None:
    four = machine(scope=replace(SMALL, ranks=4, cores=4))
    assert four.value("all_reduce_latency", ranks=2) == pytest.approx(LATENCY)
    assert four.value("all_reduce_latency", ranks=4, group=2) == pytest.approx(BESIDE * LATENCY)
    split = ("platform=cpu", "model=llama_tiny", "layout.tensor_model_parallel_size=2")
    alone, beside = (load_experiment(*split, f"gpus_per_node={count}") for count in (2, 4))
    times = [estimate(e, machine=four).time.parts.tensor_parallel[0] for e in (alone, beside)]
    micro_batches = [e.layout.num_micro_batches for e in (alone, beside)]
    assert times[1] / micro_batches[1] > 0.6 * BESIDE * times[0] / micro_batches[0]


SLOWER = (
    ("send_latency", 4.0, ("model=llama_tiny", "layout.pipeline_model_parallel_size=2"), "pipeline_sends"),
    ("grouped_rate", 0.5, ("model=moe_tiny", "layout.expert_model_parallel_size=2"), "gemm"),
)


@pytest.mark.parametrize(("name", "times", "words", "part"), SLOWER)
def test_sends_and_products_of_experts_are_as_the_machine_has_them(
    name: str, times: float, words: tuple[str, ...], part: str
) -> None:
    e, known = load_experiment("platform=cpu", "gpus_per_node=2", *words), machine()
    changed = [with_values(one, value=times * one.value) if one.name == name else one for one in known.figures]
    slower = with_values(known, figures=tuple(changed))
    before, after = (getattr(estimate(e, machine=one).time.parts, part)[0] for one in (known, slower))
    assert after > 1.3 * before


def test_threads_that_must_be_woken_for_a_kernel_slow_each_layer() -> None:
    e = load_experiment("platform=cpu", "model=llama_tiny", "gpus_per_node=2")
    known, more = machine(), 5e-5
    slow = [with_values(one, value=one.value + more) if one.name == "thread_launch" else one for one in known.figures]
    asleep = with_values(known, figures=tuple(slow))
    times = [estimate(e, machine=one).time.parts.launches[0] for one in (known, asleep)]
    passes, layers, kernels = 3, 4, CALLS["launch_dense"][1]
    every = e.layout.num_micro_batches * passes * layers * kernels * more
    software = step_time.offset_of(
        shipped(), step_time.Case(str(columns_of(e)["stack"]), "cpu", "fp32", "pretraining", 0)
    )
    assert times[1] - times[0] == pytest.approx(every * software, rel=0.02)


@pytest.mark.parametrize(("split", "more"), [("tensor_model", 0.6), ("context", 0.6)])
def test_a_split_layer_has_more_starts(split: str, more: float) -> None:
    words = ("platform=cpu", "model=llama_tiny", "gpus_per_node=2", "training.micro_batch_size=1")
    layouts = (("training.global_batch_size=12",), ("training.global_batch_size=6", f"layout.{split}_parallel_size=2"))
    jobs = [load_experiment(*words, *layout) for layout in layouts]
    whole, cut = (estimate(e, machine=machine()).time.parts.launches[0] for e in jobs)
    assert cut / whole == pytest.approx(1 + more)


def test_the_memory_of_a_process_has_what_the_framework_was_measured_to_take() -> None:
    e = load_experiment("platform=cpu", "model=llama_tiny")
    own = [Figure("framework_memory", size, "bytes", "", {"framework": name}) for name, size in FRAMEWORK.items()]
    known = with_values(machine(), figures=(*machine().figures, *own))
    alone, with_it = (estimate(e, machine=one).figures["peak_memory_device_bytes"] for one in (machine(), known))
    assert (alone.source, with_it.source) == ("assumed", "computed")
    assert alone.value is not None
    assert with_it.value == alone.value + sum(FRAMEWORK.values())
    assert "as measured on host" in with_it.note


def test_trainings_say_what_training_the_allocator_and_collectives_keep_of_other_runs() -> None:
    own = [Figure("framework_memory", size, "bytes", "", {"framework": name}) for name, size in FRAMEWORK.items()]
    known = with_values(machine(), figures=(*machine().figures, *own))
    of_training, of_share, of_links = 4e7, 0.3, 2e7
    every = [training(words) for words in overrides(2, full=False)]

    def resident(words: tuple[str, ...]) -> float:
        tensors = estimate(load_experiment("platform=cpu", *words)).figures["peak_memory_allocated_bytes"].value or 0.0
        exchanges = "gpus_per_node=2" in words and not any("pipeline" in word for word in words)
        return tensors * (1 + of_share) + sum(FRAMEWORK.values()) + of_training + of_links * exchanges

    with_sizes = [replace(one, memory_bytes=resident(one.training.run)) for one in every]
    learned = with_trainings(known, with_sizes, len(every))
    assert learned.value("training_memory") == pytest.approx(of_training, rel=1e-3)
    assert learned.value("allocator_memory") == pytest.approx(of_share, rel=1e-3)
    assert learned.value("link_memory") == pytest.approx(of_links, rel=1e-3)
    for words in UNSEEN:
        figure = estimate(load_experiment("platform=cpu", *words), machine=learned).figures["peak_memory_device_bytes"]
        assert figure.value == pytest.approx(resident(words), rel=1e-3)
    alone = [one for one in with_sizes if "gpus_per_node=2" not in one.training.run]
    assert with_trainings(known, alone, len(alone)).value("link_memory") is None


FRAMEWORK = {"torch": 2.3e8, "engine": 1.3e8}


def slowed(one: Any) -> Any:
    return with_values(one, value=one.value / 2) if one.name == "gemm_rate" else one


def test_the_figures_of_another_machine_are_refused() -> None:
    e = load_experiment("platform=nvidia", "model=llama", "hardware=h100")
    with pytest.raises(ConfigError, match="another machine"):
        estimate(e, machine=machine())
    gpu = machine("NVIDIA H100 80GB HBM3", accelerator=True)
    assert estimate(e, machine=gpu).jobs.peak_bf16_flops[0] == pytest.approx(RATE, rel=1e-6)


def test_an_estimate_by_the_file_of_another_cpu_names_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, note = tmp_path / "machine.yaml", "are of AMD EPYC"
    write(path, machine())
    words = ["platform=cpu", "model=llama_tiny", f"machine={path}"]
    monkeypatch.setattr(cli, "processor", lambda: "Xeon of here")
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert note in out and "here is Xeon of here" in out
    monkeypatch.setattr(cli, "processor", lambda: machine().device)
    assert cli.main(words) == 0
    assert note not in capsys.readouterr().out


TRUTH = {"host.cpu": 0.6, "collective_latency": 1.6, "traffic": 0.8}
"""Factors of a made-up machine, whose whole steps take other times than its kernels and links alone say."""
UNSEEN = (
    ("model=llama_tiny", "gpus_per_node=2", "training.global_batch_size=16"),
    ("model=llama_tiny", "gpus_per_node=2", "layout.tensor_model_parallel_size=2", "training.micro_batch_size=2"),
    ("model=llama_tiny", "gpus_per_node=2", "layout.pipeline_model_parallel_size=2"),
)


def training(words: tuple[str, ...]) -> Done:
    """Return a training on a machine that is as the model says, but for TRUTH."""
    columns = columns_of(load_experiment("platform=cpu", *words))
    seconds = trained(machine(), columns, {name: Factor(value, 0.0) for name, value in TRUTH.items()})
    return Done(Training(words, seconds, 16, 0.05), columns)


def test_trainings_say_what_kernels_and_links_do_not_and_predict_others() -> None:
    every = [training(words) for words in overrides(2, full=False)]
    known = with_trainings(machine(), every, len(every))
    for one in known.trainings:  # tensor parallelism's alone has enough collectives to say what they wait
        off = 0.2 if any("tensor" in word for word in one.run) else 0.05
        assert one.left_out_s == pytest.approx(one.step_time_s, rel=off)
    off_alone, off_known = list[float](), list[float]()
    for words in UNSEEN:
        e = load_experiment("platform=cpu", *words)
        expected, found = training(words).training.step_time_s, estimate(e, machine=known)
        alone = estimate(e, machine=machine()).figures["step_time_mean_s"].value
        value = found.figures["step_time_mean_s"].value
        assert value == pytest.approx(expected, rel=0.08)
        assert alone is not None and value is not None
        off_alone.append(abs(alone / expected - 1))
        off_known.append(abs(value / expected - 1))
        interval = found.figures["step_time_mean_s"].interval
        assert interval is not None
        assert interval[0] < expected < interval[1] < 1.5 * expected
        assert not found.time.notes[0]
        assert found.accuracy.startswith(f"95 % interval by the errors of {len(every)} trainings on host, each")
    assert max(off_alone) > 2 * max(off_known)  # of one layout kernels alone may be right by chance


@pytest.mark.parametrize("where", [("platform=nvidia", "hardware=h100"), ("platform=amd", "hardware=mi300x")])
def test_trainings_on_gpus_can_be_launched_and_fit(where: tuple[str, ...]) -> None:
    every = overrides(8, full=True, accelerator=True)
    assert len(overrides(1, full=True, accelerator=True)) >= LEAST
    assert len(overrides(1, full=False)) >= LEAST  # of one rank, too, quick learns
    for words in every:
        assert headroom(load_experiment(*where, *words)).word == "fits"
    for split in ("tensor", "pipeline"):  # each beside data parallelism on as many
        degrees = {word.partition("=")[2] for words in every for word in words if f"{split}_model" in word}
        assert degrees == {"2", "4", "8"}


def test_trainings_of_the_engine_on_a_gpu_say_nothing_of_another_framework() -> None:
    gpu = machine("NVIDIA H100 80GB HBM3", accelerator=True)
    trainings = tuple(Training(words, 1.0, 16, 0.1) for words in overrides(8, full=True, accelerator=True))
    known = with_values(gpu, factors={"gemm_backward": Factor(2.0, 0.1)}, trainings=trainings)
    words = ("platform=nvidia", "hardware=h100", "model=llama32_1b", "layout=data_parallel")
    engine, nemo = (load_experiment(*words, f"framework={name}") for name in ("megatron", "nemo"))
    ratio = {e.framework.name: gemm_s(e, known) / gemm_s(e, gpu) for e in (engine, nemo)}
    assert ratio["nemo"] == 1.0
    assert ratio["megatron"] > 1.2


def test_trainings_on_gpus_are_learned_from() -> None:
    gpu, truth = machine("NVIDIA H100 80GB HBM3", accelerator=True), {"host.h100": Factor(1.6, 0.0)}
    every = []
    for words in overrides(2, full=True, accelerator=True):
        columns = columns_of(load_experiment("platform=nvidia", "hardware=h100", *words))
        every.append(Done(Training(words, trained(gpu, columns, truth), 16, 0.05), columns, 4e10))
    known = with_trainings(gpu, every, len(every))
    assert all(one.left_out_s == pytest.approx(one.step_time_s, rel=0.1) for one in known.trainings)
    assert {"communication_tp", "communication_pp"} <= {one.name for one in parameters(known, [], [])}
    assert known.value("allocator_memory") is None  # what torch allocates is no resident memory


def gemm_s(e: Any, known: Machine) -> float:
    return float(estimate(e, machine=known).time.parts.gemm[0])


def test_another_release_predicts_the_same_of_a_machine_whose_trainings_say_it() -> None:
    every = [training(words) for words in overrides(2, full=False)]
    known, e = with_trainings(machine(), every, len(every)), load_experiment("platform=cpu", *UNSEEN[0])
    before = estimate(e, machine=known).figures["step_time_mean_s"].value
    later = {name: with_values(one, value=3 * one.value) for name, one in shipped().values.items()}
    other = with_values(shipped(), values={**shipped().values, **{name: later[name] for name in NOT_MEASURED}})
    after = estimate(e, other, machine=known).figures["step_time_mean_s"].value
    assert after == pytest.approx(before, rel=1e-9)
    without = {name: Factor(one.value, one.sd) for name, one in known.factors.items()}
    bare = with_values(known, factors=without)
    assert estimate(e, other, machine=bare).figures["step_time_mean_s"].value != pytest.approx(before, rel=0.01)


NOT_MEASURED = ("permute", "traffic_backward", "gemm_backward")
"""Parameters that no figure of a machine is, and its trainings alone correct."""


def test_factors_without_trainings_are_one_and_few_trainings_give_none() -> None:
    every = [training(words) for words in overrides(2, full=False)]
    exact = [trained(machine(), one.columns, {}) for one in every]
    found = learned(machine(), [one.columns for one in every], exact)
    assert {name: factor.value for name, factor in found.items()} == pytest.approx(dict.fromkeys(found, 1.0), rel=0.01)
    known = with_trainings(machine(), every[: LEAST - 1], len(every))
    assert not known.factors
    assert len(known.trainings) == LEAST - 1
    assert f"{LEAST} are needed" in known.unknown["factors"]
    assert known.unknown["trainings"].startswith(f"{LEAST - 1} of {len(every)} completed")
    accuracy = estimate(load_experiment("platform=cpu", *UNSEEN[0]), machine=known).accuracy
    assert accuracy.startswith("a guess: the machine's file has its kernels and links")
    assert f"({LEAST - 1} trainings completed, {LEAST} are needed)" in accuracy


@pytest.mark.parametrize(
    ("kept", "words", "why"),
    [
        (1, ("gpus_per_node=2",), "all trainings were of one process"),
        (2, ("gpus_per_node=4",), "no training had more processes than the 2 cores"),
        (2, ("gpus_per_node=2",), ""),
        (4, ("gpus_per_node=4",), ""),
    ],
)
def test_trainings_of_fewer_processes_say_nothing_of_those_that_wait_for_more(
    kept: int, words: tuple[str, ...], why: str
) -> None:
    every = [training(one) for one in overrides(kept, full=True)]
    known = with_trainings(machine(scope=replace(SMALL, ranks=4)), every, len(every))
    said = estimate(load_experiment("platform=cpu", "model=llama_tiny", *words), machine=known).accuracy
    assert (why in said) if why else said.startswith("95 % interval by the errors of")


def test_ranks_that_share_cores_wait_by_a_factor_of_their_own() -> None:
    crowded = machine(scope=replace(SMALL, ranks=4))
    truth = {"collective_latency": Factor(1.5, 0.0), f"{CROWDED}collective_latency": Factor(0.7, 0.0)}
    columns = [columns_of(load_experiment("platform=cpu", *words)) for words in overrides(4, full=True)]
    found = learned(crowded, columns, [trained(crowded, one, truth) for one in columns])
    assert found["collective_latency"].value == pytest.approx(1.5, rel=0.1)
    assert found[f"{CROWDED}collective_latency"].value == pytest.approx(0.7, rel=0.1)


def test_a_process_of_one_thread_is_as_fast_as_those_that_have_one_each() -> None:
    small, large = (
        load_experiment("platform=cpu", "model=llama_tiny", "gpus_per_node=1", f"training.micro_batch_size={size}")
        for size in (1, 8)
    )
    slow = [with_values(one, value=one.value / 4) if one.of.get("ranks") == 2 else one for one in machine().figures]
    for e, slower in ((small, True), (large, False)):
        times = [gemm_s(e, known) for known in (machine(), with_values(machine(), figures=tuple(slow)))]
        assert (times[1] > 2 * times[0]) == slower


def test_ranks_that_share_a_core_are_timed_over_several_turns_of_the_scheduler() -> None:
    crowded = Scope(accelerator=False, ranks=4, cores=2, memory_bytes=8 << 30, full=False)
    assert {crowded.least_s(2) < case["least_s"] for case in cases(crowded) if case["ranks"] == 4} == {True}
