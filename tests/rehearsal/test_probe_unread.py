"""Names that nothing has read: where they are kept, and what takes them. No vendor is needed for it."""

from __future__ import annotations

import copy
import pickle
import sys
import types
from collections.abc import Iterator
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "launchers" / "ranks" / "rehearsal"


@pytest.fixture
def unread() -> Iterator[Any]:
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    import tprimat_probe

    yield tprimat_probe
    sys.path.remove(str(FOLDER))
    for name in set(sys.modules) - before:
        if name.startswith("tprimat_"):
            del sys.modules[name]


@pytest.fixture
def probe(unread: Any, tmp_path: Path) -> Any:
    return unread.Probe(tmp_path)


def test_primus_arguments_report_what_was_read_and_are_plain_afterwards(
    unread: Any, probe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "primus.yaml"
    config.write_text(
        "modules: {pre_trainer: {overrides: {lr: 0.1, lr_warmup_itres: 5, save: null, seed: 3}}}", encoding="utf-8"
    )
    monkeypatch.setattr(sys, "argv", ["main.py", "train", "--config", str(config), "--globl_batch_size", "8"])

    class Builder:
        def to_namespace(self) -> types.SimpleNamespace:
            return types.SimpleNamespace(lr=0.1, lr_warmup_itres=5, seed=3)

    unread._unread_arguments(probe, types.SimpleNamespace(MegatronArgBuilder=Builder))
    arguments = Builder().finalize()  # type: ignore[attr-defined]
    assert isinstance(arguments, types.SimpleNamespace) and (arguments.lr, arguments.seed) == (0.1, 3)

    def _print_args() -> list[Any]:
        return [getattr(arguments, name) for name in vars(arguments)]

    assert 5 in _print_args(), "printing an argument is no use of it"
    assert type(pickle.loads(pickle.dumps(arguments))) is types.SimpleNamespace, "as in a checkpoint"
    for source in probe.unread_sources:
        probe.guarded(source)
    assert probe.faults == []
    assert probe.unread == {"primus": ["globl_batch_size", "lr_warmup_itres"]}
    assert arguments.lr_warmup_itres == 5 and type(copy.copy(arguments)) is types.SimpleNamespace


def test_a_legacy_trainer_of_primus_keeps_its_config_for_arguments(
    unread: Any, probe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "primus.yaml"
    config.write_text("modules: {pre_trainer: {overrides: {lr: 0.1, virtual_stages: 2}}}", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["main.py", f"--config={config}"])
    trainer = types.SimpleNamespace(lr=0.1, virtual_stages=2)
    loaded = types.SimpleNamespace(_exp=types.SimpleNamespace(modules=types.SimpleNamespace(pre_trainer=trainer)))

    class Module:
        def __init__(self, module_name: str, primus_config: Any, rank: int) -> None:
            self.config, self.rank = getattr(primus_config._exp.modules, module_name), rank

    unread._unread_config(probe, types.SimpleNamespace(BaseModule=Module))
    module = Module(module_name="pre_trainer", primus_config=loaded, rank=3)
    assert (module.config.lr, module.rank) == (0.1, 3)
    assert module.config is loaded._exp.modules.pre_trainer, "one object, as before"
    for source in probe.unread_sources:
        probe.guarded(source)
    assert (probe.faults, probe.unread) == ([], {"primus": ["virtual_stages"]})


def test_a_strategy_that_takes_any_keyword_is_asked_by_its_signature(unread: Any, probe: Any) -> None:
    class Strategy:
        def __init__(self, tensor_model_parallel_size: int = 1, **kwargs: Any) -> None:
            self.size = tensor_model_parallel_size

    unread._extra_keywords(probe, types.SimpleNamespace(MegatronStrategy=Strategy))
    assert Strategy(tensor_model_parallel_size=2, bogus=1).size == 2
    assert probe.unread == {"MegatronStrategy": ["bogus"]}


Inner = make_dataclass("Inner", [("lr", float)])
Container = make_dataclass("Container", [("optimizer", Inner)])


def test_an_attribute_that_is_no_field_is_inert(unread: Any, probe: Any) -> None:
    module: Any = types.SimpleNamespace(pretrain=lambda config, step: (config, step))
    unread._extra_attributes(probe, module)
    config: Any = Container(Inner(0.1))
    config.optimizer.weight_decya = 0.1
    config.yarn_mscale = None  # Megatron-Core reads it by its name
    assert module.pretrain(config, "step") == (config, "step")
    assert probe.unread == {"ConfigContainer": ["optimizer.weight_decya"]}
    module.pretrain(3, "step")
    assert probe.faults, "what is no container is a fault of the probe, and none of the run"
