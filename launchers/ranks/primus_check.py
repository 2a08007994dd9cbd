"""Check that Primus takes an experiment: primus_check.py CHECKOUT EXPERIMENT.yaml RELEASE [IMAGE [SAID]]

SAID: the release that the checkout is, where git does not show it.

Reads files alone: the presets, Megatron's argument definitions and the names that Primus' own code uses. Primus ignores
an unknown key without a word from v26.1 on, and up to v25.11 dies of one, so each is looked up. Needs the standard
library and PyYAML. Findings are printed as marks ([tprimat] refused {…}) and as text; exit code 2 if there are any."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rank_program import Problem, mark, read_text

RELEASE = re.compile(r"(?:^|[ /:])v(\d+\.\d+)(?:\.\d+)?(?:[,_-]|\s*$)")
STRICT = ("v25.9", "v25.10", "v25.11")  # whose keys must be in the presets (primus/core/launcher/parser.py asserts it)
CONFIGS = Path("primus", "configs")
MEGATRON = Path("third_party", "Megatron-LM")
# Key → first release that does not do what it says, though some code names it, and the key that does.
RENAMED = {
    "virtual_pipeline_model_parallel_size": ("v25.9", "num_virtual_stages_per_pipeline_rank"),
    "norm_epsilon": ("v26.2", "layernorm_epsilon"),
    "use_turbo_parallel_linear": ("v26.4", "use_turbo_gemm"),
    "use_turbo_grouped_mlp": ("v26.4", "use_turbo_grouped_gemm"),
}


def release_of(checkout: Path) -> str | None:
    """Return v26.5 of a checkout of branch release/v26.5 or tag v26.5.0; None of any other, or without git."""
    match = RELEASE.search(git(checkout, "log", "-1", "--format=%D"))
    return f"v{match[1]}" if match else None


def version_of(checkout: Path) -> str | None:
    """Return v26.5.0-3-gca7ddda3 as git describes it; v25.9 where its tags are of another count; None where it has no
    release."""
    release, described = release_of(checkout), git(checkout, "describe", "--tags")
    return described if described.startswith(release or "") and described else release


def git(checkout: Path, *words: str) -> str:
    """Return what git prints of this tree, and of none that it lies in; empty where it fails."""
    git = ("git", "-c", "safe.directory=*", "-C", str(checkout), *words)
    return output(*git, GIT_CEILING_DIRECTORIES=str(checkout.resolve().parent)).strip()


def output(*argv: str, **env: str) -> str:
    """Return what a program prints; empty where it is missing, fails or hangs."""
    env = {**os.environ, **env}
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=20, env=env, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def findings(
    checkout: Path, experiment: Mapping[str, Any], release: str, image: str | None = None, said: str | None = None
) -> list[Problem]:
    """List all that keeps `checkout` from running `experiment` (the loaded YAML) as it is meant. said: its release,
    where git does not show it."""
    if not (checkout / "primus" / "cli" / "main.py").is_file():
        what = "is not a checkout of Primus, so no key was looked up"
        hint = "PRIMUS_PATH=/path/to/Primus, of git clone --recurse-submodules"
        return [Problem("PRIMUS_PATH", what, str(checkout), hint=hint)]
    return [*_tree(checkout, release, image, said), *_keys(checkout, experiment, release)]


def _tree(checkout: Path, release: str, image: str | None, said: str | None) -> Iterator[Problem]:
    actual = release_of(checkout) or said
    if not actual:
        what = f"the experiment was written for {release}, and git knows no release of this checkout"
        commit = git(checkout, "describe", "--tags", "--always") or "no git history"
        hint = f"PRIMUS_RELEASE={release} bash run.sh, if that is what it is"
        yield Problem("PRIMUS_PATH", what, f"{checkout}: {commit}", release, hint)
    elif actual != release:
        what = f"the experiment was written for {release}, whose keys this checkout may ignore"
        hint = f"framework.release={actual}, or the other checkout"
        yield Problem("PRIMUS_PATH", what, f"{checkout} is {actual}", release, hint)
    tag = RELEASE.search((image or "").rpartition("/")[2])
    if tag and actual and f"v{tag[1]}" != actual:
        what = "tree and image are of different releases, which AMD's notes warn of"
        yield Problem("image", what, f"{image} with {actual}", f"rocm/primus:{actual}")
    if not (checkout / MEGATRON / "megatron").is_dir():
        what = f"{MEGATRON} is empty: the checkout was made without its submodules"
        yield Problem("PRIMUS_PATH", what, str(checkout), hint=f"git -C {checkout} submodule update --init --recursive")


def _keys(checkout: Path, experiment: Mapping[str, Any], release: str) -> Iterator[Problem]:
    trainer = experiment["modules"]["pre_trainer"]
    folder, recipe = trainer["framework"], experiment.get("recipe")
    theirs = shipped(checkout, recipe) if recipe else {}
    if theirs is None:
        what = f"the checkout does not have {recipe}, which the experiment is the recipe of"
        yield Problem("recipe", what, str(checkout), release, f"git -C {checkout} checkout release/{release}")
    model, module = CONFIGS / "models" / folder / trainer["model"], CONFIGS / "modules" / folder / trainer["config"]
    for path in (model, module):
        if not (checkout / path).is_file():
            there = sorted(p.name for p in (checkout / path).parent.glob("*.yaml"))
            yield Problem("model", f"Primus has no {path}", trainer["model"], ", ".join(there))
    presets = _preset_keys(checkout / model, set()) | _preset_keys(checkout / module, set())
    known = presets
    if release not in STRICT:
        code = "\n".join(read_text(path) for path in (checkout / "primus").rglob("*.py"))
        # what Megatron's parser knows, what Primus' own code takes from the arguments, and presets that it names
        read = set(re.findall(r"""args(?<!\wargs)(?:\.|, ?['"])(\w+)""", code))
        known = _arguments(checkout / MEGATRON) | read
        known |= {key for key in presets & set(trainer["overrides"]) - known if _named(key, code)}
    for key in trainer["overrides"]:
        since, instead = RENAMED.get(key, ("v9999.0", ""))
        if key in (theirs or ()):
            continue
        if _numbers(release) >= _numbers(since):
            yield Problem(key, f"Primus {release} ignores it, or dies of it", key, instead)
        elif key not in known:
            does = "dies of" if release in STRICT else "ignores"
            yield Problem(key, f"no code of this checkout reads it: Primus {release} {does} it", key)


def shipped(checkout: Path, file: str) -> dict[str, Any] | None:
    """Return the overrides of an experiment that the checkout has, None where it has no such file."""
    import yaml

    if not (checkout / file).is_file():
        return None
    overrides: dict[str, Any] = yaml.safe_load(read_text(checkout / file))["modules"]["pre_trainer"]["overrides"]
    return overrides


def _preset_keys(path: Path, seen: set[Path]) -> set[str]:
    """Return the keys of a preset and of all that it extends."""
    import yaml

    if path in seen or not path.is_file():
        return set()
    seen.add(path)
    document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    chains = ("extends", "bases", "includes")
    below = [base for chain in chains for base in document.get(chain) or ()]
    keys = set(document) - set(chains)
    return keys.union(*(_preset_keys((path.parent / base).resolve(), seen) for base in below))


def _named(key: str, code: str) -> bool:
    """Return whether the word stands in code. It stands before its boundary: re then looks for it by its letters, and
    not at each of seven million places whether a word begins."""
    word = re.escape(key)
    return re.search(rf"{word}(?<!\w{word})\b", code) is not None


def _arguments(megatron: Path) -> set[str]:
    """Return what Megatron's parser knows: its options, and the fields of config classes that newer ones make options
    of."""
    text = "\n".join(read_text(path) for path in (megatron / "megatron" / "training").glob("*.py"))
    names = {name.replace("-", "_") for name in re.findall(r"""['"]--([a-z0-9][a-z0-9_-]*)['"]""", text)}
    names |= set(re.findall(r"""\bdest=['"](\w+)['"]""", text))
    if "ArgumentGroupFactory" in text:
        for path in (megatron / "megatron").rglob("*config*.py"):
            names |= set(re.findall(r"^    (\w+) *:", read_text(path), re.M))
    return names


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.removeprefix("v").split(".")))


def main(checkout: str, experiment: str, release: str, image: str | None = None, said: str | None = None) -> int:
    import yaml

    requested = yaml.safe_load(Path(experiment).read_text(encoding="utf-8"))
    problems = findings(Path(checkout), requested, release, image, said)
    for problem in problems:
        mark("refused", problem._asdict())
        print(f"engine: primus: {problem.line()}", file=sys.stderr)
    return 2 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:6]))
