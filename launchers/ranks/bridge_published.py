"""Find the performance recipes that a Megatron-Bridge publishes, by its own code: functions of
megatron.bridge.perf_recipes (0.6.0), or scripts/performance of its repository (0.3.1), which no package has.

The scripts run as they are, from setup_experiment.py's command line to the job that it would send to Slurm, with the
variables and arguments that its plugins add, and from run_script.py's to the object that it would train. Replaced are
the two calls that would do so, nemo_run.run and pretrain, by ones that keep what they are given."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import pkgutil
import re
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = re.compile(
    r"(?P<model>\w+?)_pretrain_(?P<gpus>\d+)gpu_(?P<hardware>[a-z]+\d+)_(?P<precision>bf16|fp8cs|fp8sc|fp8mx|nvfp4)"
    r"(?:_(?P<variant>\w+))?_config"
)
_PRESET = re.compile(
    r"(?P<model>\w+?)_pretrain_config_(?P<hardware>[a-z]+\d+)_(?P<precision>bf16|fp8_cs|fp8_sc|fp8_mx|nvfp4)"
    r"(?:_(?P<variant>\w+))?"
)
_USUAL = "v2", "v1", None
"""The variants that the scripts take where none is named, the first that there is (argument_parser.py:707)."""
_OF_A_SITE = ("HF_", "TRANSFORMERS_", "TOKENIZERS_", "WANDB_", "NEMO_")
"""Variables of the scripts for files, tokens and messages, which are no part of how the work is done."""


@dataclass(frozen=True)
class Published:
    """One recipe. where: its file:line in the repository. make: builds a new object of it. environment: its variables,
    of such an object. note: what its launcher does beside, None: nothing."""

    name: str
    model: str
    gpus: int
    hardware: str
    precision: str
    variant: str | None
    where: str
    make: Callable[[], Any]
    environment: Callable[[Any], Mapping[str, str]]
    note: Callable[[], str | None] = lambda: None


def published(scripts: str | None) -> dict[str, Published]:
    """Return every pre-training recipe by name. scripts: the folder scripts/performance, where they are there."""
    known = functions() if scripts is None else presets(Path(scripts))
    return {one.name: one for one in sorted(known, key=lambda one: one.name)}


def functions() -> Iterator[Published]:
    """Yield the recipes of megatron.bridge.perf_recipes."""
    packages = importlib.import_module("megatron.bridge.perf_recipes")
    for part in pkgutil.iter_modules(packages.__path__):
        if not part.ispkg:
            continue
        for name, function in vars(importlib.import_module(f"{packages.__name__}.{part.name}")).items():
            if stated := NAME.fullmatch(name):
                file = inspect.getsourcefile(function) or ""
                where = f"src/{file.partition('/src/')[2]}:{inspect.getsourcelines(function)[1]}"
                words: dict[str, Any] = {**stated.groupdict(), "gpus": int(stated["gpus"]), "where": where}
                yield Published(name, **words, make=function, environment=lambda config: config.env_vars)


def presets(scripts: Path) -> Iterator[Published]:
    """Yield the recipes of scripts/performance: a constant of configs/FAMILY each, FUNCTION_PRECISION_VARIANT."""
    logging.disable(logging.CRITICAL)  # setup_experiment.py asks for all that any library has to say
    sys.path.insert(0, str(scripts))
    for folder in sorted((scripts / "configs").iterdir()):
        if not (folder / "__init__.py").is_file():
            continue
        known = {name.lower(): value for name, value in vars(importlib.import_module(f"configs.{folder.name}")).items()}
        lines = dict(_constants(folder))
        for name, where in lines.items():
            stated = _PRESET.fullmatch(name)
            if stated is None or name not in known:
                continue
            words = stated.groupdict()
            job = _Job(scripts, folder.name, words, known[name].num_gpus)
            stem = name.removesuffix(f"_{words['variant']}")
            usual = next(v for v in _USUAL if "_".join(filter(None, (stem, v))) in lines)
            yield Published(
                name=name,
                model=words["model"],
                gpus=known[name].num_gpus,
                hardware=words["hardware"],
                precision=words["precision"].replace("_", ""),
                variant=None if words["variant"] == usual else words["variant"],
                where=f"scripts/performance/configs/{folder.name}/{where}",
                make=job.config,
                environment=job.environment,
                note=job.note,
            )


def _constants(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (name in lower case, file:line) of each constant that the modules of a folder assign."""
    for path in sorted(folder.glob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if assigned := re.match(r"([A-Z]\w+) = ", line):
                yield assigned[1].lower(), f"{path.name}:{number}"


class _Job:
    """A recipe as the scripts would submit it."""

    def __init__(self, scripts: Path, family: str, words: Mapping[str, str | None], gpus: int) -> None:
        per_node = 4 if str(words["hardware"]).startswith("gb") else 8
        said: dict[str, object] = {"m": family, "mr": words["model"], "g": words["hardware"], "c": words["precision"]}
        said |= {"cv": words["variant"] or "v1", "ng": gpus, "gn": min(gpus, per_node)}
        self.scripts = scripts
        self.argv = [text for name, value in said.items() for text in (f"-{name}", str(value))]

    @functools.cached_property
    def submitted(self) -> tuple[list[str], Any]:
        """Return the arguments of run_script.py, and the executor."""
        import nemo_run

        kept: list[tuple[list[str], Any]] = []

        def keep(task: Any, executor: Any, plugins: Any, **_: Any) -> None:
            for plugin in plugins:
                plugin.setup(task, executor)
            kept.append((list(task.args), executor))

        before, nemo_run.run = nemo_run.run, keep
        sys.modules.pop("utils.executors", None)  # its table of variables keeps those of the job before
        sys.modules["wandb"] = None  # type: ignore[assignment]  # which setup_experiment.py does without
        try:
            _run(lambda: runpy.run_path(str(self.scripts / "setup_experiment.py"), run_name="__main__"), self.argv)
        finally:
            nemo_run.run = before
            del sys.modules["wandb"]
        return kept[0]

    def config(self) -> Any:
        """Return a new object, as run_script.py would hand it to the training."""
        kept: list[Any] = []
        program: Any = importlib.import_module("run_script")
        program.pretrain = lambda config, **_: kept.append(config)
        _run(program.main, self.submitted[0])
        return kept[0]

    def environment(self, _: Any) -> Mapping[str, str]:
        """Return the variables of the job."""
        variables = self.submitted[1].env_vars.items()
        return {name: value for name, value in variables if not name.startswith(_OF_A_SITE)}

    def note(self) -> str | None:
        """Return what the job puts in front of its ranks."""
        before = self.submitted[1].launcher.template_vars["pre_cmds"]
        return f"its launcher starts each rank by `{before}`, which is not done here" if before else None


def _run(program: Callable[[], Any], arguments: list[str]) -> None:
    """Run `program` with a command line; --dryrun ends setup_experiment.py where nothing has been submitted."""
    before, sys.argv = sys.argv, ["performance", *arguments, *(() if "--dryrun" in arguments else ("--dryrun",))]
    try:
        program()
    finally:
        sys.argv = before
