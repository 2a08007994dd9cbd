"""Test what the in-rank programs of vendors' stacks share: paths that must exist, values by name, refusals,
readings."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launchers.attribute_settings import FORMS
from launchers.rank_modules import rank_module
from parsers.faults import FaultFinder

vendor_ranks, rank_program = rank_module("vendor_ranks"), rank_module("rank_program")
tprimat_settings = importlib.import_module("tprimat_settings")  # vendor_ranks has put its folder on the path


@dataclass
class Model:
    num_layers: int = 1
    backend: Any = None


@dataclass
class Root:
    model: Model = field(default_factory=Model)
    comm_overlap: Any = None


def test_every_wrong_path_is_refused_and_the_others_are_set() -> None:
    root = Root()
    values = {"model.num_layers": 4, "model.nm_layers": 5, "comm_overlap.bucket": 1, "data.seq": 8}
    refused = list(vendor_ranks.assign(root, values, vendor_ranks.plain_names))
    assert root.model.num_layers == 4
    assert not hasattr(root.model, "nm_layers"), "a dataclass would take it silently"
    assert [r.where for r in refused] == ["model.nm_layers", "comm_overlap.bucket", "data.seq"]
    assert "num_layers" in refused[0].allowed
    assert list(vendor_ranks.assign(root, {"model.scale": 1.0}, vendor_ranks.plain_names, optional=True)) == []


def test_a_value_names_nothing_but_what_is_listed() -> None:
    assert FORMS == vendor_ranks.KINDS
    assert vendor_ranks.real_value([0, 1]) == [0, 1]
    for value in ({"enum": "os.environ"}, {"function": "system"}, {"dtype": "int8"}, {"call": "exit"}):
        with pytest.raises(vendor_ranks.Refused):
            vendor_ranks.real_value(value)


def test_marks_hold_what_json_can(capsys: pytest.CaptureFixture[str]) -> None:
    kind = Enum("kind", "flash")
    values = {"backend": kind.flash, "function": len, "loss": float("nan"), "sizes": (1, 2), "nested": {1: None}}
    rank_program.mark("effective", values)
    line = capsys.readouterr().out
    assert line.startswith("[tprimat] effective ")
    reported = json.loads(line.partition("effective ")[2])
    assert reported == {"backend": "flash", "function": "len", "loss": None, "sizes": [1, 2], "nested": {"1": None}}


def test_a_refusal_is_the_cause_that_the_record_gets(capsys: pytest.CaptureFixture[str]) -> None:
    refusals = [vendor_ranks.Problem("model.x", "no such name", "x"), vendor_ranks.Problem("data", "not there")]
    assert rank_program.stop(2, "engine: nemo: 2 reasons not to run", refusals) == 2
    out, err = capsys.readouterr()
    finder = FaultFinder()
    for line in err.splitlines():
        finder.feed(line)
    root = finder.faults().root or ""
    assert "model.x: no such name; found: x" in root
    assert "data: not there" in root
    marks = [json.loads(line.partition("refused ")[2]) for line in out.splitlines()]
    assert [mark["where"] for mark in marks] == ["model.x", "data"]


def test_other_ranks_leave_the_word_to_the_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(rank_program.time, "sleep", lambda _: None)
    assert rank_program.stop(2, "engine: nemo: no") == 2
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("text", ["- a list", "key: [", ""])
def test_a_settings_file_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(vendor_ranks.Refused):
        vendor_ranks.read_settings(str(path))
    with pytest.raises(vendor_ranks.Refused):
        vendor_ranks.read_settings(str(tmp_path / "missing.yaml"))


@pytest.mark.parametrize(
    ("frequency", "dense"), [(1, 0), (2, None), ([0, 0, 1, 1], 2), ([1, 1], 0), ([1, 0, 1], None), ([0, 0], 2)]
)
def test_dense_layers_are_counted_only_where_they_all_come_first(frequency: Any, dense: int | None) -> None:
    assert tprimat_settings.first_dense_layers(SimpleNamespace(moe_layer_freq=frequency)) == dense


def test_the_weight_decay_is_that_of_the_groups_that_decay() -> None:
    config = SimpleNamespace(
        optimizer="adam", clip_grad=1.0, adam_beta1=0.9, adam_beta2=0.95, adam_eps=1e-8, weight_decay=0.1
    )
    groups = [{"params": [], "betas": (0.9, 0.99), "eps": 1e-5, "weight_decay": decay} for decay in (0.0, 0.033)]
    read = tprimat_settings.read(optimizer=config, **tprimat_settings.first_group(groups))
    assert (read["weight_decay"], read["adam_eps"], read["adam_beta2"]) == (0.033, 1e-5, 0.99), "not the config's"
    assert tprimat_settings.read(optimizer=config)["weight_decay"] == 0.1


def test_what_no_object_has_is_left_out_and_what_is_switched_off_is_null() -> None:
    dense = SimpleNamespace(num_layers=2, num_moe_experts=None, moe_router_topk=2, multi_latent_attention=False)
    read = tprimat_settings.read(model=dense)
    assert (read["num_layers"], read["num_experts"], read["moe_router_topk"], read["q_lora_rank"]) == (
        2,
        None,
        None,
        None,
    )
    assert not {"clip_grad", "hidden_size", "world_size"} & {*read}


def test_a_setting_that_cannot_be_read_is_one_fault() -> None:
    def raises() -> int:
        raise RuntimeError("no groups")

    faults: list[str] = []
    groups = SimpleNamespace(get_data_parallel_world_size=raises, get_context_parallel_world_size=lambda: 2)
    read = tprimat_settings.read(lambda name, error: faults.append(f"{name}: {error}"), groups=groups)
    assert (read, faults) == ({"context_parallel_size": 2}, ["data_parallel_size: no groups"])
    with pytest.raises(RuntimeError):
        tprimat_settings.read(groups=groups)
