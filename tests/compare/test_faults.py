"""Each fault that spoilt our predecessor's comparison, by its number in reference/aesthetics.md, section 6: caught."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from conf.errors import InputError
from conf.vocabulary import vocabulary
from metrics import summarise
from parsers import Record
from parsers.cli import imported
from tests.compare.made import compared, made, ran, repeats, silent

ROOT = Path(__file__).parents[2]
DUMP: dict[str, Any] = {
    **{
        (setting.keys("megatron") or (setting.name,))[0]: 1
        for setting in vocabulary().values()
        if setting.dump and setting.name != "data"
    },
    **dict(seq_length=100, global_batch_size=8, world_size=2, train_iters=12, num_attention_heads=4),
    **dict(params_dtype="torch.float32", fp8=None, recompute_granularity=None, num_experts=None),
    **dict(multi_latent_attention=False, use_rope_scaling=False, swiglu=True, group_query_attention=True),
    **dict(num_query_groups=2, kv_channels=8, hidden_size=32, ffn_hidden_size=64, padded_vocab_size=128),
    **dict(data_path="['/data/corpus']", mock_data=False, eod_mask_loss=False, attention_backend="auto"),
    **dict(layernorm_epsilon=1e-05, norm_epsilon=1e-05, overlap_grad_reduce=False, overlap_param_gather=False),
}


def log(folder: Path, name: str, losses: list[str] | None = None, **dump: Any) -> Record:
    """Return the record of a log of Megatron-LM: its argument dump, and an iteration line for each loss."""
    lines = ["------------------------ arguments ------------------------"]
    lines += [f"  {key} {'.' * (47 - len(key))} {value}" for key, value in sorted({**DUMP, **dump}.items())]
    lines += ["-------------------- end of arguments ---------------------"]
    for i, loss in enumerate(losses or [f"{6 - 0.1 * i:.6E}" for i in range(12)], start=1):
        lines.append(
            f" [2026-01-01 00:00:{2 * i:02d}] iteration {i:8d}/      12 | consumed samples: {8 * i:12d} | elapsed time "
            f"per iteration (ms): 2000.0 | learning rate: {1e-4 * i:.6E} | global batch size:     8 | lm loss: {loss} "
            "| loss scale: 1.0 | grad norm: 1.000 | number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
    path = folder / f"{name}.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return imported(path)


def on(platform: str, record: Record) -> Record:
    hardware, framework = {"amd": ("mi300x", "primus"), "nvidia": ("h100", "nemo")}[platform]
    return replace(record, platform=platform, hardware=hardware, framework=framework)


SAME = {"data": "one corpus, by its path"}  # no dump says what our name of the data is


def verdict(*records: Record) -> tuple[str, set[str]]:
    """Return the word, and the settings that the verdict names."""
    known = compared(*records, accept=SAME).audit.verdict
    return known.word, {reason.partition(":")[0].split(" of ")[0] for reason in known.texts}


def test_the_same_log_on_both_platforms_is_comparable(tmp_path: Path) -> None:
    """Whatever follows fails for its fault, and for nothing else."""
    result = compared(on("nvidia", log(tmp_path, "a")), on("amd", log(tmp_path, "b")), accept=SAME)
    assert result.audit.verdict.word == "comparable", result.audit.verdict


def test_faults_1_3_and_5_in_the_dump_alone(tmp_path: Path) -> None:
    """A corpus that is mock though its path is in the dump or not, opposite performance switches, another epsilon,
    masked ends of documents: the verdict names the setting, and nothing else."""
    differing: tuple[tuple[dict[str, Any], set[str]], ...] = (
        ({"mock_data": True, "data_path": None}, {"mock_data", "data_path", "split"}),
        ({"mock_data": True}, {"mock_data", "data_path", "split"}),
        ({"overlap_grad_reduce": True}, {"overlap_grad_reduce"}),
        ({"overlap_param_gather": True}, {"overlap_param_gather"}),
        ({"layernorm_epsilon": 1e-06}, {"norm_epsilon"}),
        ({"eod_mask_loss": True}, {"eod_mask_loss"}),
    )
    for dump, names in differing:
        pair = on("nvidia", log(tmp_path, "nvd")), on("amd", log(tmp_path, "amd", None, **dump))
        assert verdict(*pair) == ("not comparable", names)
        switches = names <= {"overlap_grad_reduce", "overlap_param_gather"}  # the same work done otherwise
        result = compared(*pair, accept=SAME)
        assert (result.standing, bool(result.ratios)) == ("conditional" if switches else "side by side", switches)
        assert compared(*pair).standing == "side by side"  # whether the data are the same is not known


def test_fault_2_settings_that_reach_nothing() -> None:
    """Written at the top level of Primus' YAML, 28 of 42 keys changed nothing: what ran is not what was requested."""
    over = {"swiglu": True, "sequence_parallel": False}
    requested = made("amd", over=over, platform="amd", hardware="mi300x")
    word, names = verdict(made("nvd", over=over), ran(requested, sequence_parallel=True))
    assert (word, "sequence_parallel" in names) == ("not comparable", True)
    both = ran(made("nvd"), clip_grad=0), ran(requested, clip_grad=0, swiglu=1, sequence_parallel=1)
    assert verdict(*both)[0] == "not comparable", "alike on both sides, and still not what was requested"


def test_fault_3_another_attention_kernel_is_shown(tmp_path: Path) -> None:
    """A vendor's own kernel is allowed, and never silent: unfused attention against auto stands in the table."""
    unfused = log(tmp_path, "nvd", attention_backend="AttnBackend.unfused")
    result = compared(on("nvidia", unfused), on("amd", log(tmp_path, "amd", attention_backend="AttnBackend.auto")))
    row = next(row for row in result.audit.rows if row.setting == "attention_backend")
    assert (row.state, set(row.values.values())) == ("allowed", {("unfused",), ("sdpa",)})


def test_fault_4_different_clocks() -> None:
    ours = made("nvd")
    printed = tuple(replace(step, end_monotonic_s=None) for step in ours.steps)
    other = replace(on("amd", ours), id="b", name="b", steps=printed)
    for share, word in ((1.005, "comparable"), (1.02, "not comparable")):
        timed = tuple(replace(step, step_time_s=2.0 * share) for step in ours.steps)
        result = compared(replace(ours, steps=timed), other).audit
        reason = next(row.reason for row in result.rows if row.setting == "clock")
        assert (share, result.verdict.word, "agree within 1 %" in reason) == (share, word, word == "comparable")
    early = tuple(replace(step, flags=("step_time_s:asynchronous",)) for step in printed)
    mean = summarise(replace(ours, steps=early))["step_time_mean_s"]
    assert mean.value is None, "a clock that stops before the GPU does is none"
    slow = tuple(replace(s, end_monotonic_s=100 + 2.0 * i + (30 if i else 0)) for i, s in enumerate(ours.steps))
    mean = summarise(replace(ours, steps=slow))["step_time_mean_s"]
    assert mean.value == pytest.approx(2.0), "warm-up is left out"


def test_fault_6_one_program_under_two_names_is_one_group(tmp_path: Path) -> None:
    """The settings that ran distinguish runs, never what they are called; and one log is one run."""
    mega, prim = repeats("train_amd_mega_llama", (2.0, 2.1))
    result = compared(on("amd", mega), on("amd", replace(prim, name="train_amd_prim_llama")))
    assert (len(result.groups), result.audit.verdict.word) == (1, "nothing to compare")
    record = log(tmp_path, "mega")
    with pytest.raises(InputError, match="is the same run as"):
        compared(record, replace(record, name="prim"))


def test_fault_7_a_dropped_value_shifts_nothing(tmp_path: Path) -> None:
    """One object a step: a loss out of any range stays at its step, and no other moves."""
    printed = [f"{6 - 0.1 * i:.6E}" for i in range(12)]
    broken = log(tmp_path, "a", losses=[*printed[:4], "nan", "2.0E+08", *printed[6:]])
    steps = broken.steps
    assert [step.iteration for step in steps] == list(range(1, 13))
    assert (steps[4].loss, steps[4].nonfinite, steps[5].loss) == (None, ("loss",), 2e8)
    assert [step.loss for step in steps[6:]] == [float(text) for text in printed[6:]]
    assert [step.lr for step in steps] == pytest.approx([1e-4 * i for i in range(1, 13)])


def test_fault_7_a_lost_line_shifts_nothing(tmp_path: Path) -> None:
    """Curves are compared by step, never by their place in a list."""
    complete = log(tmp_path, "complete")
    lost = replace(on("amd", complete), id="b", name="b", steps=tuple(s for s in complete.steps if s.step != 5))
    result = compared(on("nvidia", complete), lost)
    assert [check.name for check in result.audit.checks if check.state == "apart"] == []
    shifted = [replace(step, lr=complete.steps[min(step.step + 1, 11)].lr) for step in complete.steps]
    moved = compared(on("nvidia", complete), replace(on("amd", complete), id="c", name="c", steps=tuple(shifted)))
    assert moved.audit.verdict.word != "comparable"


def test_fault_8_samples_of_memory_are_no_series_of_steps(tmp_path: Path) -> None:
    """The predecessor's own records hold such series: they are not read into steps."""
    known = summarise(log(tmp_path, "amd"))
    assert {name for name, q in known.items() if "memory" in name and q.value is not None} == set()
    entry = {
        "platform": "amd",
        "gpu_info": {"device_name": "AMD Instinct MI300X", "total_memory_gb": 206.1, "software_stack": "rocm"},
        "training_config": {"max_steps": 3, "global_batch_size": 8, "sequence_length": 100, "num_gpus": 8},
        "step_times": [2.0, 2.0, 2.0],
        "loss_values": [6.0, 5.9],
        "memory_values": [61.2, 61.3, 61.4],
    }
    path = tmp_path / "train_amd_prim_llama.json"
    path.write_text(json.dumps(entry), encoding="utf-8")
    record = imported(path)
    assert [step.memory_bytes for step in record.steps] == [None] * 3
    assert [step.loss for step in record.steps] == [None] * 3, "fault 7: two values for three steps are nobody's"
    assert "loss: 2 values for 3 steps" in record.notes[0]


def test_fault_9_no_fact_by_default(tmp_path: Path) -> None:
    record = log(tmp_path, "amd")
    assert (record.platform, record.hardware, record.environment.get("device_name")) == (None, None, None)
    result = summarise(replace(record, environment={"device_name": "AMD GPU (from log)"}))
    assert (result["mfu_percent"].value, result["mfu_percent"].note) == (None, "unknown GPU")
    assert summarise(silent(record, "world_size", "global_batch_size"))["tokens_per_s_per_gpu"].value is None
    bare = tuple(replace(s, consumed_samples=None, global_batch_size=None) for s in record.steps)
    assert summarise(silent(replace(record, steps=bare), "global_batch_size"))["tokens_per_s"].value is None
    other = silent(on("amd", log(tmp_path, "b")), "global_batch_size")
    assert verdict(on("nvidia", record), other)[0] == "cannot tell"
    assert not [name for name in summarise(made("a")) if "core" in name], "nothing is divided by shader counts"


def test_fault_10_without_pyyaml_nothing_is_started(tmp_path: Path) -> None:
    """The predecessor warned, and ran the recipe as it came."""
    (tmp_path / "yaml.py").write_text("raise ImportError('no PyYAML here')", encoding="utf-8")
    target = tmp_path / "run"
    target.mkdir()
    bundle = ROOT / "tests" / "golden" / "primus" / "bundles" / "llama_mi300x"
    command = [sys.executable, str(ROOT / "launchers" / "ranks" / "primus_settle.py"), str(bundle), str(target)]
    tried = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert tried.returncode != 0
    assert "no PyYAML here" in tried.stderr
    assert list(target.iterdir()) == []


def test_fault_10_the_recipe_as_it_came_is_another_experiment() -> None:
    """Same name, same request, and the recipe's own settings ran: no repeat, and no partner for a comparison."""
    unpatched = ran(made("amd", over={"seed": 2}), norm_epsilon=1e-06, overlap_grad_reduce=True)
    word, names = verdict(made("amd_1"), unpatched)
    assert (word, {"norm_epsilon", "overlap_grad_reduce"} <= names) == ("not comparable", True)
