"""Stacks that are not built on Megatron-Core train the same experiment: equal losses, settings read back.

fsdp2 needs torch alone and is in `make test`; the others need `make stacks`: `make test-stacks` trains what proves most
in the minutes that CI has, `make wide-stacks` every stack in every case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from parsers import Record, read

ROOT = Path(__file__).parents[2]
STACKS = os.environ.get("STACKS_PYTHON", ROOT / ".venv-stacks/bin/python")
PYTHONS = {
    **dict.fromkeys(("hf", "deepspeed"), Path(STACKS)),
    "torchtitan": Path(os.environ.get("TORCHTITAN_PYTHON", ROOT / ".venv-torchtitan/bin/python")),
}
"""The interpreters of make stacks; fsdp2 and the engine need none of them."""
TOLERANCE = {"fp32": 2e-6, "bf16": 3e-3, "autocast": 5e-3}
"""Nats/token: other kernels round otherwise. In fp32 every wrong setting that was tried parts them by 1.3e-4."""
SHORT = (
    "training.train_iters=8",
    "optimizer.lr_warmup_iters=3",
    "training.seq_length=64",
    "training.global_batch_size=8",
)
PARTS = (
    *("model.add_qkv_bias=true", "model.untie_embeddings_and_output_weights=false", "model.use_rope_scaling=true"),
    *("model.rope_scaling_factor=8.0", "training.attention=unfused", "training.recompute_granularity=full"),
    *("training.recompute_method=uniform", "training.recompute_num_layers=1"),
)
CASES: dict[str, tuple[str, ...]] = {
    "fp32 1 rank": ("gpus_per_node=1",),
    "fp32 2 ranks": ("gpus_per_node=2",),
    "fp32 2 ranks, unsharded, Qwen 3": (
        *("gpus_per_node=2", "training.use_distributed_optimizer=false", "model.qk_layernorm=true"),
    ),
    "bf16 2 ranks, Qwen 2, tied": ("gpus_per_node=2", "precision=bf16", *PARTS),
}


def launched(stack: str, folder: Path, *words: str, python: bool = True) -> tuple[int, str]:
    """Return the exit code of a launch, and what it printed. python: by the interpreter that has the stack."""
    where = (f"framework.python={PYTHONS[stack]}",) if python and stack in PYTHONS else ()
    if where and not PYTHONS[stack].exists():
        pytest.skip(f"{stack} is not installed: make stacks, or STACKS_PYTHON, TORCHTITAN_PYTHON")
    argv = [sys.executable, "launch.py", "platform=cpu", f"framework={stack}", f"runs_dir={folder}", f"name={stack}"]
    done = subprocess.run([*argv, *where, *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=900)
    return done.returncode, done.stdout + done.stderr


def trained(stack: str, folder: Path, *words: str, python: bool = True) -> Record:
    code, text = launched(stack, folder, *SHORT, *words, python=python)
    assert code == 0, text
    return read(next((folder / stack).glob("*/run.json")).parent)


@dataclass(frozen=True)
class Engine:
    """The engine's runs, each made once."""

    folder: Path
    kept: dict[str, Record]

    def run(self, case: str) -> Record:
        if case not in self.kept:
            self.kept[case] = trained("megatron", self.folder / str(len(self.kept)), *CASES[case])
        return self.kept[case]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine(tmp_path_factory.mktemp("engine"), {})


def assert_the_same(stack: str, case: str, engine: Engine, folder: Path, *release: str) -> None:
    """Hold a stack to the engine: settings as requested or declared, rates equal, losses and norms within rounding."""
    ours, theirs = engine.run(case), trained(stack, folder, *CASES[case], *release, python=not release)
    assert theirs.status == "completed"
    declared = {entry.key for entry in theirs.declared}
    assert [str(one) for one in theirs.differences if one.setting not in declared] == []
    assert [note for note in theirs.notes if "not reported" in note] == []
    assert theirs.environment["data_first_batch"] == ours.environment["data_first_batch"]
    assert [step.lr_used for step in theirs.steps] == pytest.approx([step.lr_used for step in ours.steps], rel=1e-12)
    precision = "autocast" if theirs.setting("enable_autocast") else "fp32" if "fp32" in case else "bf16"
    for one, other in zip(ours.steps, theirs.steps, strict=True):
        assert one.loss is not None and other.loss is not None
        assert abs(one.loss - other.loss) <= TOLERANCE[precision], (one.step, one.loss, other.loss)
        if other.grad_norm is not None:
            assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-5 if precision == "fp32" else 0.05)


@pytest.mark.engine
def test_plain_pytorch_trains_as_the_engine_does(engine: Engine, tmp_path: Path) -> None:
    assert_the_same("fsdp2", "fp32 2 ranks", engine, tmp_path)


QUICK = {
    ("hf", "fp32 2 ranks, unsharded, Qwen 3"),
    ("deepspeed", "bf16 2 ranks, Qwen 2, tied"),
    ("torchtitan", "fp32 TP2"),
    ("torchtitan", "bf16 2 ranks"),
}
"""By stack the cases that `make test-stacks` trains: one rank of each in fp32 is in test_rehearsed_stacks.py, two ranks
of DeepSpeed in the test of its stages, and of fsdp2 in `make test`. The others are wide."""


def in_width(stack: str, cases: Iterable[str]) -> list[Any]:
    """Return a test's parameters, a stack in each of the cases: wide ones are marked."""
    wide = pytest.mark.wide
    return [pytest.param(stack, case, marks=() if (stack, case) in QUICK else wide) for case in cases]


@pytest.mark.stacks
@pytest.mark.parametrize(
    ("stack", "case"), [row for stack in ("fsdp2", "hf", "deepspeed") for row in in_width(stack, CASES)]
)
def test_every_stack_trains_as_the_engine_does(stack: str, case: str, engine: Engine, tmp_path: Path) -> None:
    if stack == "deepspeed" and "bf16" in case:
        assert launched(stack, tmp_path, *CASES[case], UNSHARDED, "dry_run=true")[0] == 2
    assert_the_same(stack, case, engine, tmp_path)


UNSHARDED = "training.use_distributed_optimizer=false"
HYBRID = ("gpus_per_node=4", "layout.data_parallel_replicas=2")


@pytest.mark.stacks
@pytest.mark.parametrize("stack", ["torchtitan", pytest.param("fsdp2", marks=pytest.mark.wide)])
def test_replicas_of_shards_train_as_the_engine_does(stack: str, engine: Engine, tmp_path: Path) -> None:
    CASES.setdefault("fp32 2 × 2 ranks", HYBRID)
    assert_the_same(stack, "fp32 2 × 2 ranks", engine, tmp_path)


def test_bf16_without_zero_is_refused_with_the_link(tmp_path: Path) -> None:
    words = ("gpus_per_node=2", "precision=bf16", UNSHARDED, "dry_run=true")
    code, text = launched("deepspeed", tmp_path, *words, python=False)
    assert code == 2
    assert "github.com/deepspeedai/DeepSpeed/pull/5104" in text
    assert launched("deepspeed", tmp_path, "precision=fp32", *words[:1], *words[2:], python=False)[0] == 0


@pytest.mark.parametrize(
    ("stack", "named"), [("hf", "accelerate shards nothing"), ("deepspeed", "hpZ repeats the weights")]
)
def test_replicas_of_shards_are_refused_where_a_stack_has_none(stack: str, named: str, tmp_path: Path) -> None:
    code, text = launched(stack, tmp_path, *HYBRID, "dry_run=true", python=False)
    assert code == 2
    assert "layout.data_parallel_replicas: " in text and named in text


AUTO_TP = {
    "fp32 TP2, Qwen 2, tied": (
        *("gpus_per_node=2", "layout.tensor_model_parallel_size=2", "layout.sequence_parallel=false", *PARTS),
    ),
    "bf16 TP2 DP2": (
        *("gpus_per_node=4", "layout.tensor_model_parallel_size=2", "layout.sequence_parallel=false"),
        *("precision=bf16",),
    ),
}


@pytest.mark.stacks
@pytest.mark.parametrize("case", ["fp32 TP2, Qwen 2, tied", pytest.param("bf16 TP2 DP2", marks=pytest.mark.wide)])
def test_deepspeeds_tensor_parallelism_trains_as_the_engine_does(case: str, engine: Engine, tmp_path: Path) -> None:
    CASES.setdefault(case, AUTO_TP[case])
    assert_the_same("deepspeed", case, engine, tmp_path)


TITAN: dict[str, tuple[str, ...]] = {
    "fp32 1 rank": CASES["fp32 1 rank"],
    "fp32 2 ranks": CASES["fp32 2 ranks"],
    "fp32 TP2": ("gpus_per_node=2", "layout.tensor_model_parallel_size=2"),
    "fp32 1 rank, tied, wide heads": (
        *("gpus_per_node=1", "model.untie_embeddings_and_output_weights=false", "model.kv_channels=64"),
    ),
    "fp32 2 ranks, Qwen 3": ("gpus_per_node=2", "model.qk_layernorm=true", *PARTS[4:]),
    "fp32 2 ranks, scaled RoPE": ("gpus_per_node=2", *PARTS[2:4]),
    "bf16 2 ranks": ("gpus_per_node=2", "precision=bf16"),
}


@pytest.mark.stacks
@pytest.mark.parametrize(("stack", "case"), in_width("torchtitan", TITAN))
def test_torchtitan_trains_as_the_engine_does(stack: str, case: str, engine: Engine, tmp_path: Path) -> None:
    CASES.setdefault(case, TITAN[case])
    assert_the_same(stack, case, engine, tmp_path)


NEW = Path(os.environ.get("TORCHTITAN_030_PYTHON", ROOT / ".venv-torchtitan-0.3.0/bin/python"))
TITAN_030 = {
    "fp32 2 ranks": CASES["fp32 2 ranks"],
    "fp32 TP2": TITAN["fp32 TP2"],
    "fp32 2 × 2 ranks": HYBRID,
    "fp32 2 ranks, replicas, scaled RoPE, recomputed": (
        *("gpus_per_node=2", "training.use_distributed_optimizer=false", *PARTS[2:4], *PARTS[5:]),
    ),
    "bf16 2 ranks": TITAN["bf16 2 ranks"],
}


@pytest.mark.stacks
@pytest.mark.wide
@pytest.mark.parametrize("case", TITAN_030)
def test_torchtitan_030_trains_as_the_engine_does(case: str, engine: Engine, tmp_path: Path) -> None:
    if not NEW.exists():
        pytest.skip(f"TorchTitan 0.3.0 is not installed: make torchtitan-0.3.0 ({NEW})")
    CASES.setdefault(case, TITAN_030[case])
    release = ("framework.release=0.3.0", f"framework.python={NEW}")
    assert_the_same("torchtitan", case, engine, tmp_path, *release)


REFUSED = {
    "TorchTitan 0.3's pipelines": (
        "gpus_per_node=2",
        "framework.release=0.3.0",
        "layout.pipeline_model_parallel_size=2",
    ),
    "pull/4217": (
        "gpus_per_node=2",
        "framework.release=0.3.0",
        "+framework.options.parallelism.spmd_backend=full_dtensor",
    ),
    "is configured in Python": ("gpus_per_node=2", "framework.release=0.3.0", "+framework.options.compile.enable=true"),
    "0.3's Llama alone": ("gpus_per_node=2", "framework.release=0.3.0", "model.qk_layernorm=true"),
    "a release of TorchTitan that is not written": ("gpus_per_node=1", "framework.release=0.1.0"),
    "pull/2323": ("gpus_per_node=2", "training.use_distributed_optimizer=false"),
    "issues/2972": ("gpus_per_node=2", "layout.pipeline_model_parallel_size=2"),
    "FSDP2, which torch refuses": ("gpus_per_node=2", "model.untie_embeddings_and_output_weights=false"),
    "has none for a CPU's": ("gpus_per_node=2", "layout.context_parallel_size=2"),
    "computes in fp32": ("gpus_per_node=2", "layout.tensor_model_parallel_size=2", "precision=bf16"),
    "no biases of queries": ("gpus_per_node=1", "model.add_qkv_bias=true"),
    "pull/2061": ("gpus_per_node=1", "model=moe_tiny"),
    "its Qwen 3 does not": ("gpus_per_node=1", "model.qk_layernorm=true", *PARTS[2:4]),
}


@pytest.mark.parametrize("named", REFUSED)
def test_what_torchtitan_does_otherwise_than_it_says_is_refused(named: str, tmp_path: Path) -> None:
    code, text = launched("torchtitan", tmp_path, *REFUSED[named], "dry_run=true", python=False)
    assert code == 2
    assert named in text


@pytest.mark.stacks
@pytest.mark.parametrize("stage", [pytest.param(2, marks=pytest.mark.wide), 3])
def test_each_stage_of_zero(stage: int, engine: Engine, tmp_path: Path) -> None:
    case, option = "fp32 2 ranks", f"+framework.options.zero_optimization.stage={stage}"
    record = trained("deepspeed", tmp_path, *CASES[case], option)
    ours = [step.loss for step in engine.run(case).steps]
    assert [step.loss for step in record.steps] == pytest.approx(ours, abs=TOLERANCE["fp32"])


PLANTED: dict[str, dict[str, dict[str, object]]] = {
    "fsdp2": {"max_norm": {"clip_grad": 0.5}},
    "hf": {
        "adam_epsilon": {"adam_eps": 1e-5},
        "adam_beta2": {"adam_beta2": 0.999},
        "max_grad_norm": {"clip_grad": 0.5},
        "weight_decay": {"weight_decay": 0.2},
    },
    "deepspeed": {"gradient_clipping": {"clip_grad": 0.5}},
    "torchtitan": {
        "optimizer.eps": {"adam_eps": 1e-5},
        "optimizer.beta2": {"adam_beta2": 0.999},
        "training.max_norm": {"clip_grad": 0.5},
        "optimizer.weight_decay": {"weight_decay": 0.2},
        "training.mixed_precision_param": {"params_dtype": "bfloat16"},
    },
}
"""By stack, a key of its own that is written otherwise than requested, and the setting that then runs."""
BUILT = {"rotary_base": 500000.0, "norm_epsilon": 1e-6, "use_rope_scaling": True, "rope_scaling_factor": 8.0}
"""The same of settings that its program builds the model by."""


@pytest.mark.stacks
@pytest.mark.parametrize("stack", [pytest.param("fsdp2", marks=pytest.mark.wide), "hf", "deepspeed", "torchtitan"])
def test_a_setting_that_is_written_wrongly_is_read_back_by_name(stack: str, tmp_path: Path) -> None:
    """By what was built: the stack's keys and the model's parts are changed behind the plan's back."""
    trained(stack, tmp_path, "gpus_per_node=1", "training.train_iters=4")
    folder = next((tmp_path / stack).glob("*/settings.json")).parent
    requested = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    planted = {**requested, **BUILT, "arguments": dict(requested["arguments"])}
    expected: dict[str, Any] = {**BUILT}
    for key, setting in PLANTED[stack].items():
        planted["arguments"][key] = next(iter(setting.values()))
        expected |= setting
    (folder / "planted.json").write_text(json.dumps(planted), encoding="utf-8")
    argv = [str(PYTHONS.get(stack, sys.executable)), str(ROOT / f"launchers/ranks/{stack}_ranks.py")]
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    where = {**os.environ, **place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "OMP_NUM_THREADS": "1"}
    argv += ["--settings", "planted.json"]
    done = subprocess.run(argv, cwd=folder, env=where, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    mark = next(line for line in done.stdout.splitlines() if line.startswith("[tprimat] effective "))
    ran = json.loads(mark.removeprefix("[tprimat] effective "))
    clean = read(folder)
    apart = {name: value for name, value in ran.items() if clean.setting(name) != value}
    assert apart.pop("enable_autocast", True) is True  # which bf16 of one rank is
    assert apart == expected


def test_what_the_plain_stacks_cannot_do_is_refused_by_name(tmp_path: Path) -> None:
    words = ("model=moe_tiny", "layout.tensor_model_parallel_size=2", "gpus_per_node=2", "training.save_interval=3")
    code, text = launched("fsdp2", tmp_path, *words, "data=mock", "dry_run=true")
    assert code == 2
    for named in ("layout.tensor_model_parallel_size", "training.save_interval", "model.moe", "data: mock data"):
        assert named in text
    assert launched("fsdp2", tmp_path, "rehearse=layout", "dry_run=true")[0] == 2


def test_a_settings_file_that_lacks_one_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code, _ = launched("fsdp2", tmp_path, "bundle=" + str(tmp_path / "bundle"))
    assert code == 0
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"lr": 1e-3, "min_lrr": 0.0}), encoding="utf-8")
    program = ROOT / "launchers/ranks/fsdp2_ranks.py"
    argv = [sys.executable, str(program), "--settings", str(settings)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2
    assert "min_lr: is missing in the settings; try: rename min_lrr" in done.stderr
    assert "Traceback" not in done.stderr


def test_torchtitan_is_found_where_amds_image_has_it(tmp_path: Path) -> None:
    """rocm/primus has its source tree alone, which Primus installs at its start: nothing of it is metadata."""
    pytest.importorskip("torch")
    assert launched("torchtitan", tmp_path, "gpus_per_node=1", f"bundle={tmp_path / 'bundle'}", python=False)[0] == 0
    for folder, name, text in (("torchtitan", "__init__.py", ""), ("assets", "version.txt", "0.1.9\n")):
        (tmp_path / "tree" / folder).mkdir(parents=True)
        (tmp_path / "tree" / folder / name).write_text(text, encoding="utf-8")
    argv = [sys.executable, str(ROOT / "launchers/ranks/torchtitan_ranks.py"), "--settings", "settings.json"]
    env = {**os.environ, "WORLD_SIZE": "1", "TORCHTITAN_PATH": str(tmp_path / "tree")}
    done = subprocess.run(
        argv, cwd=tmp_path / "bundle", env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 2
    assert "torchtitan: another release" in done.stderr and "0.1.9" in done.stderr


def test_a_script_of_ones_own_is_there_and_stays_where_it_is(tmp_path: Path) -> None:
    """Its page, docs/guide/mine.md, has a complete one, which tests/test_docs.py runs."""
    for entry in (("framework.entry=nothere.py",), ()):
        code, text = launched("mine", tmp_path, *entry, "dry_run=true")
        assert code == 2
        assert "framework.entry: names no script" in text
    words = (f"framework.entry={__file__}", f"bundle={tmp_path / 'bundle'}", "data=mock")
    code, text = launched("mine", tmp_path, *words)
    assert code == 2
    assert "bundle: a script of your own is not taken along" in text
    assert "data: mock data" in text
