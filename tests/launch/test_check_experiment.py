"""tprimat check: what a check inside the target environment printed, as problems; nothing is started."""

from __future__ import annotations

import sys
import venv
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from conf import devices, load_experiment
from conf.resolve import Experiment
from launchers import make_plan
from launchers.plan import Host, Plan
from tensorprimat import check

HOST = Host(python=sys.executable, cpu_count=2)
REFUSED = (
    '[tprimat] refused {"where": "model.config.x", "what": "no such name", "found": "x", "allowed": "y", "hint": ""}\n'
)
CONFIGURED = '[tprimat] facts {"nemo_toolkit": "2.7.3"}\n[tprimat] configured {"num_layers": 4, "lr": 0.001}\n'


def nemo() -> tuple[Experiment, Plan]:
    e = load_experiment("platform=cpu", "framework=nemo")
    return e, make_plan(e, HOST)


@pytest.mark.skipif(devices.find().vendor is not None, reason="a GPU is here")
def test_that_no_gpu_is_here_speaks_against_nothing_where_the_stack_was_rehearsed() -> None:
    e = load_experiment("platform=nvidia", f"framework.python={sys.executable}")
    (_, said, left), (_, _, wrong) = (check._machine(e, rehearsed) for rehearsed in (True, False))
    assert said.startswith("not done: no nvidia GPU is here")
    assert [problem.where for problem in wrong] == ["platform", *(problem.where for problem in left)]


def test_refusals_become_problems_all_of_them() -> None:
    target = check.read_answer(2, f"noise\n{REFUSED}{REFUSED.replace('config.x', 'config.z')}", "engine: …")
    assert [(p.where, p.what, p.found, p.allowed) for p in target.problems] == [
        ("model.config.x", "no such name", "x", "y"),
        ("model.config.z", "no such name", "x", "y"),
    ]


def test_a_check_that_dies_or_says_nothing_is_a_problem() -> None:
    (died,) = check.read_answer(1, CONFIGURED, "Traceback\n  File\nImportError: no module\n").problems
    assert "exit code 1" in died.what
    assert "ImportError: no module" in died.found
    (silent,) = check.read_answer(0, "Training done\n", "").problems
    assert "reported no settings" in silent.what


def test_what_is_configured_is_checked_against_the_request() -> None:
    e, plan = nemo()
    target = check.read_answer(0, CONFIGURED, "")
    assert (target.problems, target.facts) == ((), {"nemo_toolkit": "2.7.3"})
    assert list(check.undeclared(e, plan, target.configured)) == []
    wrong = {**target.configured, "num_layers": 5, "max_position_embeddings": 128}
    (problem,) = check.undeclared(e, plan, wrong)
    assert problem.where == "num_layers", "max_position_embeddings is declared by the plan"
    assert "4 is requested" in problem.what


def test_the_check_runs_in_a_folder_with_the_rendered_files_and_leaves_nothing(tmp_path: Path) -> None:
    e, plan = nemo()
    program = (
        "import json, pathlib; text = pathlib.Path('settings.yaml').read_text(); "
        f"pathlib.Path({str(tmp_path / 'where')!r}).write_text(str(pathlib.Path.cwd())); "
        "print('[tprimat] configured ' + json.dumps({'num_layers': int('recipe: llama3_8b' in text) + 4}))"
    )
    (problem,) = check.target_problems(e, replace(plan, check=(sys.executable, "-c", program)))
    assert "would run" in problem.what, "num_layers is 5 there"
    assert not Path((tmp_path / "where").read_text(encoding="utf-8")).exists()


def test_an_interpreter_that_cannot_be_started() -> None:
    e, plan = nemo()
    (problem,) = check.target_problems(e, replace(plan, check=("/no/such/python",)))
    assert problem.where == "framework.python"
    assert "framework.python=" in problem.hint


@pytest.mark.parametrize("framework", ["nemo", "megatron_bridge"])
def test_an_interpreter_without_the_stack_is_named_and_shows_no_traceback(tmp_path: Path, framework: str) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / "bin" / "python"
    e = load_experiment("platform=cpu", f"framework={framework}", f"framework.python={python}")
    (problem,) = check.target_problems(e, make_plan(e, HOST))
    assert (problem.where, problem.hint) == ("framework.python", "the Python that has the stack, or a container")
    assert problem.found == f"package yaml is missing, in {python}"


def test_a_python_without_megatron_is_named_and_shows_no_traceback(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / "bin" / "python"
    (packages,) = (tmp_path / "bare" / "lib").glob("python*/site-packages")
    (packages / "yaml").symlink_to(Path(yaml.__file__).parent)
    e = load_experiment("platform=cpu", "framework=megatron_bridge", f"framework.python={python}")
    (problem,) = check.target_problems(e, make_plan(e, HOST))
    assert (problem.where, problem.what) == ("framework.python", f"megatron-bridge is not installed in {python}")


def test_the_engine_has_no_check_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    e = load_experiment("platform=cpu", "framework=megatron")
    assert check.ask_target(e, make_plan(e, HOST)) is None


def test_the_command_reports_a_wrong_request_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["platform=cpu", "layout.tensor_model_parallel_size=3"]) == 2
    assert "TP 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("framework", "model", "why"),
    [
        ("nemo", "deepseek_v2_lite", "latent attention needs"),
        ("megatron_bridge", "gpt_oss_20b", "biases of experts need"),
    ],
)
def test_what_a_cpu_cannot_rehearse_is_not_done_and_no_fault(framework: str, model: str, why: str) -> None:
    e = load_experiment("platform=nvidia", f"framework={framework}", f"model={model}", "layout=data_parallel")
    ((part, says, problems),) = check._rehearsed(replace(e, rehearse="train"), HOST)
    assert (part, problems) == ("rehearsal", []) and says.startswith(f"not done: {why}")
