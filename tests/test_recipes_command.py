"""tprimat recipes: a list with filters, one recipe in full, and what a checkout has that is not kept yet."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conf import load_experiment
from conf import recipes as kept
from conf.errors import ConfigError, Problem
from conf.recipe_request import experiment, request_of
from conf.recipes import Recipe
from conf.vocabulary import read_yaml
from launchers import make_plan, where
from launchers.frameworks import Framework, framework_of
from parsers.outcome import FROM_LAUNCHER
from tensorprimat import recipe_plans, recipes
from tensorprimat.recipe_table import planned
from tensorprimat.recipes import main
from tensorprimat.rehearse_recipes import Row

THEIRS = Recipe(
    name="llama3_8b_8gpu_b200",
    model="llama31_8b",
    hardware=("b200",),
    gpus=8,
    precision="bf16",
    framework="made",
    release="1.2.0",
    variant=None,
    source="made/up@0 made/recipes.py:1",
    base="llama3",
    experiment={"layout.tensor_model_parallel_size": 1, "training.global_batch_size": 128},
    settings={"model.cuda_graph_impl": "local"},
    more={},
    environment={"NCCL_NVLS_ENABLE": "0"},
    published=({"tokens_per_s_per_gpu": 23456.0, "source": "made/up@0 README.md:7"},),
    note=None,
)
OTHER = replace(THEIRS, name="llama3_8b_64gpu_b200", gpus=64, published=(), environment=None)


class Made(Framework):
    """A stack whose checkout has the recipes that a test puts here."""

    name = "made"
    recipe_trees = ("made/recipes.py",)
    found: tuple[Recipe | Problem, ...] = (
        THEIRS,
        OTHER,
        Problem("llama3_8b_nvfp4", "conf/precision has none", "nvfp4"),
    )

    def read_recipes(self, checkout: Path, python: str, release: str) -> Iterator[Recipe | Problem]:
        yield from (replace(one, release=release) if isinstance(one, Recipe) else one for one in self.found)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    framework = Made()
    monkeypatch.setattr(recipe_plans, "_planned", lambda r, batch: (None, []))  # conf/framework has no such stack
    monkeypatch.setattr(recipe_plans, "experiment", lambda r, batch: None)
    monkeypatch.setattr(recipe_plans, "too_large", lambda e: [])
    monkeypatch.setattr(recipes, "frameworks", lambda: ("made",))
    monkeypatch.setattr(recipes, "framework_of", {"made": framework}.__getitem__)
    monkeypatch.setattr(recipes, "facts", lambda name: {"release": "1.1.0", "label": "Made"})
    return framework


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "kept"
    monkeypatch.setattr(kept, "RECIPES", folder)
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> str:
    path = tmp_path / "checkout"
    (path / "made").mkdir(parents=True)
    (path / "made" / "recipes.py").write_text("# a line\n", encoding="utf-8")
    committed(path)
    subprocess.run(["git", "-C", path, "tag", "v1.2.0"], check=True)
    return str(path)


def committed(path: Path) -> None:
    """Make a repository of a folder."""
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "a")):
        subprocess.run(["git", "-C", path, *words], check=True)


def tagged(checkout: str, *tags: str) -> None:
    """Replace the tags of a checkout."""
    known = subprocess.run(["git", "-C", checkout, "tag"], check=True, capture_output=True, text=True).stdout.split()
    subprocess.run(["git", "-C", checkout, "tag", "-d", *known], check=True, capture_output=True)
    for tag in tags:
        subprocess.run(["git", "-C", checkout, "tag", tag], check=True)


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    """Return what `tprimat recipes` prints to stdout and stderr; files may have been read before."""
    read_yaml.cache_clear()
    kept._read.cache_clear()
    assert main(words) == code
    shown = capsys.readouterr()
    return shown.out, shown.err


def test_what_is_imported_is_listed_and_shown(
    made: Made, folder: Path, checkout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = run(capsys, "import", checkout)
    assert "new       llama3_8b_8gpu_b200" in out and "2 recipes, the first of this stack: 2 new" in out
    assert "left out, 1: conf/precision has none: nvfp4: llama3_8b_nvfp4" in err
    assert sorted(path.name for path in (folder / "made-1.2.0").iterdir()) == [
        f"{r.name}.yaml" for r in (OTHER, THEIRS)
    ]
    kept._read.cache_clear()
    assert kept.recipes() == (OTHER, THEIRS), "as they were read"
    out, _ = run(capsys, "list", "gpus=8", "model=llama31_8b")
    assert "23,456 tokens/s/GPU" in out and OTHER.name not in out
    (row,) = json.loads(run(capsys, "list", "gpus=64", "--json")[0])
    assert (row["name"], row["published"], row["hardware"]) == (OTHER.name, None, ["b200"])
    out, _ = run(capsys, "show", THEIRS.name)
    assert "made/up@0 README.md:7" in out and '  model.cuda_graph_impl: "local"' in out
    assert "platform=nvidia model=llama31_8b hardware=b200" in out and "method=max_performance" in out
    assert json.loads(run(capsys, "show", THEIRS.name, "--json")[0])[0]["environment"] == {"NCCL_NVLS_ENABLE": "0"}


def test_an_import_shows_each_key_that_changed(
    made: Made, folder: Path, checkout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "import", checkout)
    out, _ = run(capsys, "import", checkout, "--check")
    assert "0 new, 0 changed, 0 gone" in out
    made.found = (replace(THEIRS, settings={"model.cuda_graph_impl": "none", "ddp.overlap": True}), OTHER)
    out, _ = run(capsys, "import", checkout, "--check", code=1)
    assert 'settings.model.cuda_graph_impl: "local" → "none"' in out and 'ddp.overlap: "(absent)" → true' in out
    assert "local" in (folder / "made-1.2.0" / f"{THEIRS.name}.yaml").read_text("utf-8"), "--check writes nothing"
    tagged(checkout, "v1.3.0")
    out, _ = run(capsys, "import", checkout, "--json", "--check", code=1)
    assert json.loads(out)["compared"] == "made-1.2.0", "a new release is compared with the one before"


def test_a_recipe_that_moved_is_refused_and_kept(
    made: Made, folder: Path, checkout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "import", checkout)
    made.found = (replace(THEIRS, base="llama4"),)
    out, err = run(capsys, "import", checkout, code=2)
    assert f"gone      {OTHER.name}" in out
    assert "was read from made/up@0 made/recipes.py:1, and is not in this checkout" in err
    assert "llama4" not in (folder / "made-1.2.0" / f"{THEIRS.name}.yaml").read_text("utf-8"), "nothing is written"
    tagged(checkout, "v2.0.0")
    run(capsys, "import", checkout)  # of another release nothing is expected
    assert len(list((folder / "made-2.0.0").iterdir())) == 1


def test_an_import_that_is_killed_leaves_what_was_there(
    made: Made, folder: Path, checkout: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "import", checkout)
    made.found = tuple(replace(one, base="llama4") for one in (THEIRS, OTHER))
    (folder / ".made-1.2.0.new").mkdir()
    (folder / ".made-1.2.0.new" / "half.yaml").write_text("model: lla", encoding="utf-8")  # as SIGKILL leaves it
    assert len(json.loads(run(capsys, "list", "--json")[0])) == 2

    def killed(path: Path, text: str, **_: str) -> None:
        if path.name == f"{OTHER.name}.yaml":
            raise KeyboardInterrupt
        path.touch()

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            recipes.keep((THEIRS, OTHER), folder / "made-1.2.0")
    assert [path.name for path in folder.iterdir()] == ["made-1.2.0"]
    assert "llama3" in run(capsys, "show", THEIRS.name)[0]
    run(capsys, "import", checkout)
    assert "llama4" in run(capsys, "show", THEIRS.name)[0]


def test_an_import_that_is_killed_between_its_two_renames_is_refused_with_what_helps(
    made: Made, folder: Path, checkout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "import", checkout)
    (folder / "made-1.2.0").rename(folder / ".made-1.2.0.before")
    for words in (("list",), ("import", checkout)):
        _, err = run(capsys, *words, code=2)
        assert "an import was killed" in err and f"mv {folder}/.made-1.2.0.before {folder}/made-1.2.0" in err
    (folder / ".made-1.2.0.before").rename(folder / "made-1.2.0")
    run(capsys, "import", checkout, "--check")


def test_a_checkout_that_no_commit_can_be_cited_of_is_refused(
    made: Made, folder: Path, checkout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made.found = (THEIRS, replace(OTHER, source="made/up@0 made/mine.py:3"))
    (Path(checkout) / "made" / "mine.py").write_text("# a line\n", encoding="utf-8")
    _, err = run(capsys, "import", checkout, code=2)
    assert f"{OTHER.name}: is read from made/mine.py, which is in no commit" in err
    made.found = (replace(THEIRS, source="made/up@0 made/recipes.py:2"),)
    assert "is read from line 2 of made/recipes.py, which has fewer" in run(capsys, "import", checkout, code=2)[1]
    (Path(checkout) / "made" / "recipes.py").write_text("# another\n", encoding="utf-8")
    _, err = run(capsys, "import", checkout, code=2)
    assert "has changes that are in no commit" in err and "made/recipes.py" in err and "stash" in err
    (tmp_path / "tree" / "made").mkdir(parents=True)
    (tmp_path / "tree" / "made" / "recipes.py").touch()
    assert "is in no git" in run(capsys, "import", str(tmp_path / "tree"), "release=1.2.0", code=2)[1]
    assert not folder.exists(), "nothing is written"


def test_what_is_no_checkout_is_refused(
    made: Made, folder: Path, checkout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, said in (
        (("import", str(tmp_path)), "Made: made/recipes.py"),
        (("import", "/no/where"), "no such folder"),
        (("import",), "takes one PATH"),
        (("show", "llama4"), "no recipe has this name"),
        (("list", "model=llama31_8b"), "no recipe is so"),
        (("export",), "list, show, import"),
    ):
        assert said in run(capsys, *words, code=2)[1]
    for release, said in (("1.3.0", "is v1.2.0"), ("../../x", "is no release")):
        assert said in run(capsys, "import", checkout, f"release={release}", code=2)[1]
    assert not folder.exists(), "nothing is written"
    tagged(checkout)
    assert "release=1.1.0" in run(capsys, "import", checkout, code=2)[1]
    made.found = ()
    assert "no recipe is where" in run(capsys, "import", checkout, "release=1.1.0", code=2)[1]


def test_an_interpreter_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "primus" / "cli" / "main.py"
    path.parent.mkdir(parents=True)
    path.touch()
    committed(tmp_path)
    words = ("import", str(tmp_path), "release=v26.5", "python=/no/such/python")
    assert "could not be run to read primus's recipes" in run(capsys, *words, code=2)[1]


def test_the_command_of_a_recipe_without_a_number_of_gpus_has_as_many_nodes_as_its_layout_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, nodes in {"MI300X-llama3.1_405B-BF16": 8, "MI355X-mixtral_8x22B_v0.1-BF16": 4}.items():
        (recipe,) = (r for r in kept.recipes() if r.name == name)
        assert f"nodes={nodes}" in request_of(recipe)
    assert main(["show", name]) == 0
    assert f" nodes={nodes} " in capsys.readouterr().out


def test_a_recipe_that_cannot_be_planned_is_listed_as_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["list", "--json"]) == 0
    refused = {row["name"]: row["refused"] for row in json.loads(capsys.readouterr().out) if row["refused"]}
    by = {name: next(r for r in kept.recipes() if r.name == name) for name in refused}
    stages = [name for name, why in refused.items() if "has other layers than the model" in why]
    large = [name for name, why in refused.items() if "for its model states alone" in why]
    assert sorted({name.partition("_v3")[0] for name in stages}) == ["MI355X-deepseek", "pretrain_deepseek"]
    assert len(stages) == 11
    assert sorted({(by[name].model, by[name].hardware[0]) for name in large if by[name].backend is None}) == [
        (model, gpu) for model in ("deepseek_v3", "qwen3_235b_a22b") for gpu in ("mi300x", "mi325x")
    ]
    assert {by[name].model for name in large if by[name].backend} == {"llama31_405b"}, "on one node of 8"
    others = [name for name in refused if name not in (*stages, *large)]
    assert sum(by[name].framework == "megatron_bridge" for name in others) == 7, "TOO_FEW in test_bridge_recipes.py"
    assert sum(by[name].framework == "primus" for name in others) == 14, "gpt-oss, and 126 layers over 8 stages"
    assert len(others) == 21
    name = "deepseek_v3_pretrain_64gpu_h100_bf16_config"
    why = "TP 1 × EP 64 × PP 8 does not divide 64 GPUs"
    assert refused[name] == why
    assert main(["list", "model=deepseek_v3", "hardware=h100", "gpus=64"]) == 0
    assert f"{name} is refused: {why}" in capsys.readouterr().out
    assert main(["show", name]) == 0
    assert why in capsys.readouterr().out


# Of each stack and reason one that planning refuses, and one that it does not.
PLANNED = (
    *("MI300X-llama3.1_405B-BF16", "MI355X-gpt_oss_20B-FP8", "MI355X-deepseek_v3-BF16", "MI300X-llama3.1_8B-BF16"),
    *("qwen3_235b_a22b_pretrain_64gpu_gb200_fp8cs_config", "llama3_8b_pretrain_8gpu_b200_bf16_config"),
    *("pretrain_deepseek_v3_b200_256gpus_bf16", "pretrain_mixtral_8x7b_h100_64gpus_bf16"),
    *("llama3_70b_pretrain_config_b200_bf16_v2", "MI355X-mixtral_8x22B_v0.1-BF16"),
)


@pytest.mark.parametrize("name", PLANNED)
def test_every_listing_says_what_planning_says(name: str) -> None:
    (recipe,) = (r for r in kept.recipes() if r.name == name)
    typed = (*request_of(recipe, "vendor"), f"recipe={recipe.name}", "dry_run=true")
    try:
        e = load_experiment(*typed)
        assert replace(e, reasons=(), dry_run=False) == replace(experiment(recipe), reasons=())
        make_plan(e, where.host())
        said: list[Problem] = []
    except ConfigError as error:
        said = list(error.problems)
    assert [p.what for p in recipe_plans.refusals(recipe)] == [p.what for p in said if "this is" not in p.what]
    assert (planned(recipe, kept.rehearsals()[name]).refused is None) == (not said)


def test_a_recipe_that_does_not_run_is_shown_with_what_does_and_no_command_that_starts_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = run(capsys, "show", "MI300X-qwen3_235B_A22B-BF16")[0]
    assert "does not fit" in out and "nearest that can is MI355X-qwen3_235B_A22B-BF16" in out
    assert "to run it" not in out and out.rstrip().endswith("dry_run=true")
    out = run(capsys, "show", "MI300X-deepseek_v3-BF16")[0]
    assert "no recipe of this vendor for deepseek_v3 fits" in out and "to run it" not in out
    out = run(capsys, "show", "MI355X-gpt_oss_20B-FP8")[0]
    assert "refused " in out and "tensorprimat launch" not in out


def test_no_model_states_are_counted_of_a_recipe_that_shards_more_than_the_optimizer() -> None:
    keys = ("use_torch_fsdp2", "ddp.use_megatron_fsdp", "trainer.strategy.fsdp")
    sharded = [r for r in kept.recipes() if any(r.settings.get(key) for key in keys)]
    assert {r.framework for r in sharded} == {"megatron_bridge", "nemo", "primus"}
    assert [r.name for r in sharded if "FSDP" not in r.more.get("model_states", "")] == []


def test_recipes_are_classified_before_anything_is_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"llama3_8b_pretrain_8gpu_{gpu}_bf16_config" for gpu in ("b200", "gb200")]
    refused = "qwen3_235b_a22b_pretrain_64gpu_gb200_fp8cs_config"
    words = ("rehearse", *names, refused, f"runs_dir={tmp_path}", "--classify", "--json")
    rows = json.loads(run(capsys, *words, code=1)[0])
    by_name = {row["recipe"]: row for row in rows}
    assert [by_name[name]["state"] for name in (*names, refused)] == ["not run", "not run", "refused"]
    assert "does not divide 64 GPUs" in by_name[refused]["reason"]
    assert [row["same_as"] for row in rows if row["same_as"]] == names[:1]
    (row,) = json.loads(run(capsys, "rehearse", "MI300X-llama3.1_405B-BF16", "--classify", "--json", code=1)[0])
    assert row["state"] == "refused" and "Megatron refuses it as it is shipped" in row["reason"]
    assert not [*tmp_path.iterdir()]
    assert "recipes list has all" in run(capsys, "rehearse", "no_such_recipe", code=2)[1]


def test_the_table_counts_what_plans_keep_and_what_they_have_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("table", "model=deepseek_v3", "hardware=mi300x", "precision=bf16")
    (row,) = json.loads(run(capsys, *words, "--json")[0])
    (recipe,) = (r for r in kept.recipes() if r.name == row["recipe"])
    e = load_experiment(*request_of(recipe), f"recipe={recipe.name}", "batch=vendor")
    differences = framework_of("primus").differences(e)
    assert row["forced"] + row["differs"] == len(differences) > 10
    assert row["theirs"] == len(recipe.settings) - len(differences) and "for its model states alone" in row["refused"]
    assert row["rehearsed"] == str(kept.rehearsals()[recipe.name])
    header, line = run(capsys, *words)[0].splitlines()
    cells = dict(zip(header.split(), line.replace("primus v26.5", "primus").split(), strict=True))
    assert cells["recipes"] == "1" and cells["gpus"] == "any" and cells["theirs"] == str(row["theirs"])
    of_nemo = ("table", "model=deepseek_v3", "hardware=h100", "framework=nemo", "--json")
    refused = [one["refused"] for one in json.loads(run(capsys, *of_nemo)[0])]
    assert len(refused) == 3 and all("other layers than the model" in why for why in refused)


def test_a_stack_that_is_not_here_is_refused_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NEMO_PYTHON", "BRIDGE_PYTHON", "PRIMUS_PATH"):
        monkeypatch.delenv(name, raising=False)
    for framework, said in (("nemo", "NEMO_PYTHON"), ("megatron_bridge", "BRIDGE_PYTHON"), ("primus", "PRIMUS_PATH")):
        words = (f"framework={framework}", "model=llama31_8b", f"runs_dir={tmp_path}")
        out, err = run(capsys, "rehearse", *words, code=2)
        assert not out and said in err and err.count("try:") == 1, err
    assert not [*tmp_path.iterdir()]


BY_USER = f"ended by SIGINT{FROM_LAUNCHER}"


def test_how_a_rehearsal_went_is_kept_and_shown(
    made: Made,
    folder: Path,
    checkout: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept, "REHEARSED", tmp_path / "rehearsed.csv")
    run(capsys, "import", checkout)
    kept._read.cache_clear()
    ours = ("0.1.0+abc", "2026-11-23")
    ended = Row(THEIRS.name, "made 1.2.0", "llama31_8b", "failed", reason="it does not build")
    kept.keep([ended.kept(*ours), replace(ended, recipe=OTHER.name, state="killed", reason=BY_USER).kept(*ours)])
    rows = json.loads(run(capsys, "list", "--json")[0])
    assert {row["name"]: row["rehearsed"] for row in rows} == {THEIRS.name: "failed", OTHER.name: "not rehearsed"}
    shown = run(capsys, "show", THEIRS.name)[0]
    assert "failed (TensorPrimat 0.1.0+abc, 2026-11-23): it does not build" in shown
    hung = replace(ended, state="hung", reason="no progress after no iteration").kept(*ours)
    assert (hung.outcome, hung.reason) == ("not rehearsed", "hung: no progress after no iteration"), "busy, or broken"
    same = replace(ended, state="completed", same_as=OTHER.name, reason=None).kept(*ours)
    kept.keep([same, replace(same, recipe=OTHER.name, outcome="completed", same_as="")])
    assert f"same as {OTHER.name} (TensorPrimat" in run(capsys, "show", THEIRS.name)[0]
