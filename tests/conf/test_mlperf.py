"""The table of what MLPerf's closed division fixes: its rows name what exists, and the open division fixes nothing."""

from __future__ import annotations

from conf.compose import choices
from conf.mlperf import TABLE, benchmark_of, benchmarks, gpus_of_a_node
from conf.vocabulary import read_yaml, vocabulary
from parsers.dialects.mllog import _JUDGED_BY_LOSS, _MODELS

CLOSED = {"mlperf_submission_division": "closed", "mlperf_submission_benchmark": "llama2_70b_lora"}


def test_every_row_names_what_exists_and_agrees_with_the_parser() -> None:
    settings = vocabulary()
    for name, row in benchmarks().items():
        assert not {*row.settings, *row.free} - settings.keys(), name
        assert not {*row.settings} & {*row.free}, name
        assert all(settings[key].accepts(value) for key, value in row.settings.items()), name
        assert row.conf_model is None or row.conf_model in choices("model"), name
        assert (row.target.at_most is None) != (row.target.at_least is None), name
        assert list(row.rounds) == sorted(row.rounds), name
        assert _MODELS.get(name) == row.conf_model, name
        assert (name in _JUDGED_BY_LOSS) == (row.target.at_most is not None), name
    table = read_yaml(TABLE)
    assert "@" in table["source"] and "@" in table["boards"]["source"]


def test_what_is_fixed_what_is_free_and_what_no_rule_says() -> None:
    row = benchmark_of(CLOSED)
    assert row is not None and row.seq_length == 8192 and str(row.target) == "eval loss of at most 0.925"
    assert all(map(row.fixes, ("seq_length", "num_layers", "data", "weight_decay", "adam_beta1")))
    free = ("global_batch_size", "lr", "tensor_model_parallel_size", "fp8", "seed", "recompute_granularity", "nothing")
    assert not any(map(row.fixes, free))


def test_the_open_division_and_unknown_benchmarks_fix_nothing() -> None:
    assert benchmark_of({**CLOSED, "mlperf_submission_division": "open"}) is None
    assert benchmark_of({**CLOSED, "mlperf_submission_benchmark": "resnet"}) is None
    assert benchmark_of({"mlperf_submission_benchmark": "llama2_70b_lora"}) is None


def test_gpus_of_a_node_are_known_only_where_all_systems_have_as_many() -> None:
    assert gpus_of_a_node("mi300x") == 8 and gpus_of_a_node("gb200") == 4
    assert gpus_of_a_node("h100") is None and gpus_of_a_node(None) is None
    assert not {"h100", "h200"} & {name for name in choices("hardware") if gpus_of_a_node(name)}
