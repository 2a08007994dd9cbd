"""Experiment → Plan: goldens for what is rendered, and what a renderer refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conf import load_experiment
from conf.vocabulary import read_yaml
from launchers import attribute_settings, corpus, where
from launchers import make_plan as plan
from launchers.frameworks import frameworks
from launchers.frameworks.megatron import ENGINE
from launchers.plan import Host, Plan
from launchers.run_dir import identity, run_id
from launchers.runner import environment
from launchers.variables import START

HOST = Host(python="python", cpu_count=64)
ENGINE_NAMED = "framework=megatron"  # auto would take what is installed here

PLANS = {
    "cpu_llama_tiny": ("platform=cpu",),
    "cpu_llama_tiny_tp2": ("platform=cpu", "layout=tp2", "gpus_per_node=2"),
    "nvidia_llama_8_gpus": ("platform=nvidia", "model=llama", ENGINE_NAMED),
    "amd_llama_8_gpus": ("platform=amd", "model=llama", ENGINE_NAMED),
    "amd_llama31_70b_4_nodes": ("platform=amd", "model=llama31_70b", "nodes=4", "cluster.node_rank=2", ENGINE_NAMED),
}


@pytest.mark.parametrize("name", PLANS)
def test_golden_plan(name: str, golden: Callable[[str, str], None]) -> None:
    made = plan(load_experiment(*PLANS[name], "cluster.master_addr=head", "cluster.master_port=29500"), HOST)
    text = f"{made.command()}\n\n".replace(str(ENGINE), "ENGINE").replace(str(corpus.PROGRAM), "CORPUS")
    text = text.replace(str(START), "START_RANKS")
    text += "".join(f"{key}: {reason}\n" for key, reason in sorted(made.env_reasons.items()))
    text += "".join(f"\n--- {path}\n{content}" for path, content in made.files.items())
    golden(f"plans/{name}.txt", text)


def test_the_printed_line_does_what_the_runner_does(tmp_path: Path) -> None:
    tell = 'import os, sys; print(*sys.argv[1:], *map(os.environ.get, ("A", "PYTHONPATH")), file=open("told", "a"))'
    first, last = ((sys.executable, "-c", tell, word) for word in ("first", "it's last"))
    env = {"A": "a 'b' $c", "PYTHONPATH": "/p"}
    made = Plan(setup=(("env", "A=other", *first), first), argv=last, files={}, env=env)
    inherited = {"PATH": os.environ["PATH"], "PYTHONPATH": "/mine"}
    odd = {
        "PET_NNODES": "2",
        "TORCHELASTIC_RUN_ID": "x",
        "RANK": "7",
        "LOGLEVEL": "x",
        "BACKEND_PATH": "/x",
        "PETS": "cat",
    }
    subprocess.run(["bash", "-c", made.command()], cwd=tmp_path, env=inherited, check=True)
    lines = ["first other /p:/mine", "first a 'b' $c /p:/mine", "it's last a 'b' $c /p:/mine"]
    assert (tmp_path / "told").read_text(encoding="utf-8").splitlines() == lines
    assert environment(made, inherited) == {**inherited, "A": "a 'b' $c", "PYTHONPATH": "/p:/mine"}
    names = (
        "import os; open('seen', 'w').write(' '.join(sorted({*os.environ} & {'RANK', 'PETS', *" + f"{[*odd]}" + "})))"
    )
    for forwarded, seen in (((), "PETS"), (("RANK", "HOME"), "PETS RANK")):
        alone = Plan(argv=(sys.executable, "-c", names), files={}, forward_env=forwarded)
        subprocess.run(["sh", "-c", alone.command()], cwd=tmp_path, env={**inherited, **odd}, check=True)
        assert (tmp_path / "seen").read_text(encoding="utf-8") == seen
        assert {*odd} & {*environment(alone, {**inherited, **odd})} == {*seen.split()}


def test_both_vendors_get_the_same_settings() -> None:
    nvidia, amd = (plan(load_experiment(f"platform={p}", "model=llama", ENGINE_NAMED), HOST) for p in ("nvidia", "amd"))
    settings_of_both = [json.loads(made.files["settings.json"]) for made in (nvidia, amd)]
    assert [settings.pop("device") for settings in settings_of_both] == ["cuda", "rocm"]
    assert settings_of_both[0] == settings_of_both[1]


def test_every_framework_file_has_a_renderer() -> None:
    from conf.compose import choices

    assert set(choices("framework")) == {*frameworks(), "auto"}


def test_threads_share_the_cores() -> None:
    made = plan(load_experiment("platform=cpu", "gpus_per_node=4"), Host(python="python", cpu_count=2))
    assert made.env["OMP_NUM_THREADS"] == "1"
    assert made.env["OMP_WAIT_POLICY"] == "PASSIVE"


@pytest.mark.parametrize(
    ("words", "threads"),
    [
        (("model=llama_tiny",), "1"),
        (("model=llama_tiny", "training.micro_batch_size=8"), "2"),
        (("model=llama_tiny", "training.micro_batch_size=8", "environment.OMP_NUM_THREADS=5"), "5"),
        (("model=llama_tiny", "training.micro_batch_size=8", "training.global_batch_size=16", "gpus_per_node=2"), "2"),
        (("model=llama32_1b", "gpus_per_node=2"), "32"),
    ],
)
def test_a_process_on_a_cpu_has_no_more_threads_than_pay_for_its_micro_batch(
    words: tuple[str, ...], threads: str
) -> None:
    made = plan(load_experiment("platform=cpu", *words), HOST)
    assert made.env["OMP_NUM_THREADS"] == threads
    assert ("more threads" in made.env_reasons["OMP_NUM_THREADS"]) == (threads in ("1", "2"))


def test_a_secret_goes_by_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret_value")
    made = plan(load_experiment("platform=cpu"), HOST)
    assert "HF_TOKEN" in made.forward_env
    assert "hf_very_secret_value" not in repr(made)


def test_the_identity_is_what_decides_a_run_and_nothing_else() -> None:
    base = load_experiment("platform=cpu")
    same = load_experiment("platform=cpu", "name=other", "repeat=3", "price.usd_per_gpu_hour.h100=2", "runs_dir=x")
    assert identity(base, "c") == identity(same, "c")
    for change in ("training.seed=1", "image=a", "optimizer.lr=2.0e-3", "precision=bf16", "gpus_per_node=2"):
        assert identity(load_experiment("platform=cpu", change), "c") != identity(base, "c"), change
    assert identity(base, "other commit") != identity(base, "c")


def test_a_run_id_can_be_read_and_is_one_file_name() -> None:
    made = run_id(load_experiment("platform=cpu", "layout=tp2", "gpus_per_node=4", "training.seed=7"), "c")
    assert made.startswith("tp2-dp2-sp-seed7-")
    assert "/" not in made
    assert " " not in made


def test_a_framework_brings_its_column_in_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings that the file does not name are written under their own names; a wrong entry is named with its file."""
    file = tmp_path / "toy.yaml"
    file.write_text(
        "settings:\n  lr: optim.rate\n  seed: {derived: of the clock}\n"
        "parts:\n  - {of: model.mla, cannot: the toy has no latent attention, only_value: null}\n"
        "always: {optim.fused: true}\n"
    )
    monkeypatch.setattr(attribute_settings, "FOLDER", tmp_path)
    table = attribute_settings.table.__wrapped__("toy")
    found = attribute_settings.assignments(load_experiment("platform=cpu"), table).set
    assert (found["optim.rate"], found["adam_eps"], found["optim.fused"]) == (1e-3, 1e-8, True)
    assert not {"lr", "seed"} & set(found)
    refused = attribute_settings.problems(
        load_experiment("platform=nvidia", "model=deepseek_v2_lite", "layout=data_parallel"), table
    )
    assert [problem.what for problem in refused] == ["the toy has no latent attention"]
    for wrong, said in (("{lr: {too: x}}", "toy.yaml: lr: .*too"), ("{rate: x}", "no such .*: rate")):
        file.write_text(f"settings: {wrong}\n")
        read_yaml.cache_clear()
        with pytest.raises(ValueError, match=said):
            attribute_settings.table.__wrapped__("toy")


def test_changed_and_new_files_of_ours_change_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with a new program, which git did not track yet, was once taken for the one before."""

    def git(*words: str) -> None:
        name = ("-c", "user.name=t", "-c", "user.email=t@t")
        subprocess.run(("git", "-C", str(tmp_path), *name, *words), check=True, capture_output=True, timeout=60)

    def write(path: str, text: str) -> str | None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
        return where.commit()

    monkeypatch.setattr(where, "ROOT", tmp_path)
    git("init", "-q")
    write(".gitignore", "ignored/\n")
    write("conf/model/one.yaml", "a: 1\n")
    git("add", "-A")
    git("commit", "-q", "-m", "first")
    clean = where.commit() or ""
    assert len(clean) == 40
    for path in ("out/page.py", "launchers/train.log", "launchers/ignored/x.py"):
        assert write(path, "x") == clean, f"{path} takes no part in a run"
    seen = [clean]
    changes = {
        "launchers/ranks/brook_ranks.py": ("print(1)", "print(2)"),
        "conf/model/two.yaml": ("b: 1",),
        "shell/new.sh": ("true",),
        "conf/model/one.yaml": ("a: 2\n",),
    }
    for path, text in ((path, text) for path, texts in changes.items() for text in texts):
        now = write(path, text) or ""
        assert now.startswith(f"{clean}-changed-"), path
        assert now not in seen, path
        seen.append(now)
