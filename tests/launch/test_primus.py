"""framework=primus: what is refused, how releases differ, what a bundle recomputes, and what is read of a checkout."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from conf import load_experiment
from conf.errors import InputError
from conf.vocabulary import requested
from launchers import bundle, corpus, env_to_shell
from launchers.frameworks import primus
from launchers.plan import NO_REHEARSAL
from launchers.rank_modules import rank_module
from tensorprimat.launch import main as launch
from tests.launch.fake_rocm import checkout
from tests.launch.primus_cases import overrides, planned, written

primus_check, primus_settle = rank_module("primus_check"), rank_module("primus_settle")
AMD = ("platform=amd", "framework=primus")
TINY = (*AMD, "model=llama_tiny", "layout=tp2", "training.global_batch_size=16", "optimizer.lr_warmup_iters=2")


def test_keys_are_those_of_the_release() -> None:
    for release, has, lacks in (
        ("v25.9", {"norm_epsilon"}, {"layernorm_epsilon"}),
        ("v26.1", {"norm_epsilon"}, {"layernorm_epsilon"}),
        ("v26.2", {"layernorm_epsilon", "use_turbo_parallel_linear", "use_turbo_grouped_mlp"}, {"norm_epsilon"}),
        ("v26.3", {"use_turbo_parallel_linear", "use_turbo_grouped_gemm"}, {"use_turbo_gemm"}),
        ("v26.5", {"layernorm_epsilon", "use_turbo_gemm", "use_turbo_grouped_gemm"}, {"use_turbo_parallel_linear"}),
    ):
        turbo = ("framework.options.use_turbo_gemm=true", "framework.options.use_turbo_grouped_gemm=true")
        _, plan = planned(*AMD, f"framework.release={release}", *turbo)
        assert has <= set(written(plan))
        assert not lacks & set(written(plan))
        assert {"use_turbo_gemm", "use_turbo_grouped_gemm"} <= {d.key for d in plan.declared}


def test_a_launch_without_a_checkout_starts_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert launch([*AMD, "model=llama", "framework.checkout=/nowhere", f"runs_dir={tmp_path}"]) == 2
    assert "is not a checkout of Primus" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert launch([*AMD, "model=llama", "framework.checkout=/nowhere", "dry_run=true"]) == 0
    assert "is not a checkout of Primus, so no key was looked up" in capsys.readouterr().out


def test_a_dry_run_of_a_bundle_leaves_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert launch([*AMD, "model=llama", f"bundle={tmp_path / 'b'}", "dry_run=true", "--files"]) == 0
    assert "--- primus.yaml" in capsys.readouterr().out
    assert not (tmp_path / "b").exists()


# bundles


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        bundle.write(tmp_path, {"run.sh": "x"})
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.long
@settings(deadline=None, max_examples=60)
@given(
    iters=st.integers(1, 12),
    nodes=st.integers(1, 3),
    gpus=st.sampled_from((1, 2, 3, 4, 8)),
    layout=st.sampled_from(("layout=tp2", "layout=tp2_pp2", "layout=data_parallel")),
)
def test_an_override_gives_what_rendering_again_gives_or_is_refused(
    iters: int, nodes: int, gpus: int, layout: str
) -> None:
    base = (*TINY, layout, "training.train_iters=8", "gpus_per_node=8")
    e, plan = planned(*base)
    values = {"TRAIN_ITERS": str(iters), "NNODES": str(nodes), "GPUS_PER_NODE": str(gpus)}
    again = (f"training.train_iters={iters}", f"nodes={nodes}", f"gpus_per_node={gpus}")
    try:
        settled = primus_settle.settle(
            json.loads(primus.FRAMEWORK.bundle(e, plan, NO_REHEARSAL)["bundle.json"]), values
        )
    except primus_settle.Refused:
        return  # what each refusal says: tests/launch/test_primus_box.py
    other, rendered = planned(*base, *again)
    assert settled.requested == json.loads(json.dumps(requested(other)))
    assert (
        primus_settle.written(plan.files["primus.yaml"], settled.overrides).partition("\n")[2]
        == (rendered.files["primus.yaml"].partition("\n")[2])
    )
    assert settled.corpus == corpus.setup(other, "python")[0][2:]


def test_replicas_of_shards_are_not_divided_anew_by_an_override() -> None:
    e, plan = planned(*TINY, "layout=data_parallel", "gpus_per_node=8", "layout.data_parallel_replicas=2")
    rendered = json.loads(primus.FRAMEWORK.bundle(e, plan, NO_REHEARSAL)["bundle.json"])
    with pytest.raises(primus_settle.Refused, match="2 groups of GPUs hold the same shards"):
        primus_settle.settle(rendered, {"GPUS_PER_NODE": "4"})


def test_a_file_of_a_bundle_that_is_edited_later_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    e, plan = planned(*TINY, "gpus_per_node=8")
    texts = primus.FRAMEWORK.bundle(e, plan, NO_REHEARSAL)
    bundle.write(tmp_path / "bundle", texts)
    (tmp_path / "run").mkdir()
    command = (str(tmp_path / "bundle"), str(tmp_path / "run"))
    assert primus_settle.main(*command) == 0 and "edited_files" not in capsys.readouterr().out
    path = tmp_path / "bundle" / "primus.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "# lr: 1\n", encoding="utf-8")
    assert primus_settle.main(*command) == 0
    assert '"edited_files": ["primus.yaml"]' in capsys.readouterr().out


def test_a_layout_from_a_table_is_for_its_own_gpus() -> None:
    e, plan = planned(*AMD, "model=llama")
    stated = json.loads(primus.FRAMEWORK.bundle(e, plan, NO_REHEARSAL)["bundle.json"])
    with pytest.raises(primus_settle.Refused, match=r"chosen for 1 × 8 GPUs; try: render again"):
        primus_settle.settle(stated, {"NNODES": "2"})


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=40))
def test_env_sh_gives_back_every_value(value: str) -> None:
    value = value.replace("\r", "")
    for name in ("PRIMUS_PATH", "HSA_ENABLE_SDMA"):  # one that keeps what the user set, one that is ours
        script = bundle.env_sh({name: value}, {}, {"PRIMUS_PATH"}) + f'printf %s "${name}"'
        shown = subprocess.run(["bash", "-c", script], env={}, capture_output=True, check=True).stdout
        assert shown.decode() == value


def test_exports_are_quoted() -> None:
    text = env_to_shell.exports({"A": "x'; rm -rf /", "B": None, "C": True, "D": 3.0e-5})
    assert (
        text
        == f"export A={shlex.quote(chr(120) + chr(39) + '; rm -rf /')}\nexport B=''\nexport C=true\nexport D=3e-05\n"
    )


def test_env_to_shell_prints_settings_and_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert env_to_shell.main([*AMD, "model=llama"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "export TPRIMAT_SEQ_LENGTH=8192" in lines
    assert "export NCCL_PXN_DISABLE=0" in lines
    assert env_to_shell.main(["model=nothing"]) == 2


# checkouts


def found(root: Path, release: str = "v26.5", image: str | None = None, **keys: Any) -> list[str]:
    _, plan = planned(*AMD, "model=llama", f"framework.release={release}")
    experiment = yaml.safe_load(plan.files["primus.yaml"])
    experiment["modules"]["pre_trainer"]["overrides"] |= keys
    return [finding.where for finding in primus_check.findings(root, experiment, release, image, said=release)]


def test_a_checkout_is_searched_for_every_key(tmp_path: Path) -> None:
    root = checkout(tmp_path)
    assert found(root) == []
    assert found(root, lr_warmup_itres=5) == ["lr_warmup_itres"]
    assert found(root, does_nothing=5) == ["does_nothing"]  # in a preset, and in no code
    assert found(root, swiglu_limit=5) == []  # Megatron's own
    assert found(root, norm_epsilon=1e-5) == ["norm_epsilon"]
    assert found(root, virtual_pipeline_model_parallel_size=2) == ["virtual_pipeline_model_parallel_size"]


def test_a_checkout_is_of_the_release_and_of_the_image(tmp_path: Path) -> None:
    root = checkout(tmp_path, "release/v26.5")
    assert primus_check.release_of(root) == "v26.5"
    assert found(root) == []
    assert found(root, "v26.4")[0] == "PRIMUS_PATH"
    assert found(root, image="rocm/primus:v26.4") == ["image"]
    assert found(root, image="rocm/primus:v26.5.1") == []
    e = load_experiment("platform=amd", "model=llama", f"framework.checkout={root}")
    assert (e.framework.name, e.framework.release) == ("primus", "v26.5")
    other = load_experiment(*AMD, "framework.release=v26.2", f"framework.checkout={root}")
    assert other.framework.release == "v26.2" and "Primus v26.2, as requested: checked out is v26.5" in other.reasons


COMMIT = ("commit", "-q", "--allow-empty", "-m", "x")
UNTOLD: dict[str, tuple[tuple[str, ...], ...]] = {
    "no git history": (),
    "0.6.0-rc1 (HEAD -> main, tag: 0.6.0-rc1)": (("init", "-q", "-b", "main"), COMMIT, ("tag", "0.6.0-rc1")),
}


@pytest.mark.parametrize("said", UNTOLD)
def test_a_checkout_of_an_unknown_release_is_refused(
    said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tarball, within a repository of something else, and main: whether to run, to rehearse or to carry away."""
    git = ("git", "-c", "user.name=t", "-c", "user.email=t@t", "-C")
    tagged: tuple[tuple[str, ...], ...] = (("init", "-q"), COMMIT, ("tag", "v26.5.0"))
    for words in tagged:
        subprocess.run([*git, str(tmp_path), *words], check=True)
    root = checkout(tmp_path / "Primus")
    for words in UNTOLD[said]:
        subprocess.run([*git, str(root), *words], check=True)
    other = ("model=llama", "platform=amd", f"framework.checkout={root}", f"runs_dir={tmp_path}")
    for more in (["dry_run=true"], [f"bundle={tmp_path / 'b'}"], ["framework=primus"]):
        assert launch([*other, *more]) == 2
        stated = capsys.readouterr().err
        assert f"found: {said} at {root}\n" in stated and "try: framework.release=" in stated
    assert launch([*other, "framework=primus", "rehearse=train"]) == 1
    assert "whose keys are not known" in capsys.readouterr().out
    assert launch([*other, "framework=primus", "framework.release=v26.5", "dry_run=true"]) == 0


def test_what_a_checkout_may_lack(tmp_path: Path) -> None:
    root = checkout(tmp_path)
    (root / "primus/configs/models/megatron/llama3.1_8B.yaml").rename(
        root / "primus/configs/models/megatron/other.yaml"
    )
    assert found(root) == ["model"]
    (root / "third_party/Megatron-LM/megatron").rename(root / "gone")
    assert "PRIMUS_PATH" in found(root)
    (root / "primus/cli/main.py").unlink()
    assert found(root) == ["PRIMUS_PATH"]


@pytest.mark.skipif("PRIMUS_PATH" not in os.environ, reason="PRIMUS_PATH names no checkout of Primus")
@pytest.mark.parametrize("model", ["llama", "qwen", "mixtral_8x7b", "deepseek_v3"])
def test_the_real_checkout_knows_every_key(model: str) -> None:
    path = Path(os.environ["PRIMUS_PATH"])
    release = primus_check.release_of(path) or os.environ.get("PRIMUS_RELEASE", "v26.5")
    for precision in ("bf16", "fp8"):
        _, plan = planned(*overrides(model, "mi300x", precision, release))
        assert primus_check.findings(path, yaml.safe_load(plan.files["primus.yaml"]), release, said=release) == []
