"""The installed command: `tprimat launch|check|data|parse|metrics|compare …`, lists of choices, and `tprimat completion
bash|zsh`: a script that completes commands, keys, their choices and switches."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from conf.arguments import OUTPUT, Command, switch
from conf.errors import Answer, InputError, Problem, closest, command, listed
from conf.version import VERSION
from launchers import early

# Command: its module, its Command and its main there, and its purpose.
COMMANDS: Mapping[str, tuple[str, str, str, str]] = {
    "launch": ("tensorprimat.launch", "LAUNCH", "main", "run an experiment: model=llama platform=nvidia"),
    "matrix": ("tensorprimat.matrix", "MATRIX", "main", "the runs that a launch planned: status, resume, cancel"),
    "check": ("tensorprimat.check", "CHECK", "main", "can it run here, and as requested? model=llama platform=nvidia"),
    "data": ("tensorprimat.data", "DATA", "main", "text to a corpus; look into one, or ahead"),
    "parse": ("tensorprimat.parse", "PARSE", "main", "read training logs: LOG"),
    "metrics": ("tensorprimat.claims", "METRICS", "main", "figures of runs: RUN; cost, energy, check, flops"),
    "compare": ("compare.cli", "COMPARE", "main", "compare runs: RUN RUN -o DIR"),
    "estimate": ("estimate.cli", "ESTIMATE", "main", "memory, step time and cost before anyone rents a GPU: KEY=VALUE"),
    "measure": ("measure.cli", "MEASURE", "main", "what this machine can really do: rates and links, in minutes"),
    "models": ("tensorprimat.add_model", "MODELS", "main", "the models of conf/model; add PATH: one more"),
    "gpus": ("tensorprimat.lists", "GPUS", "gpus", "the GPUs of conf/hardware"),
    "prices": ("tensorprimat.lists", "PRICES", "prices", "the example prices of conf/price"),
    "frameworks": ("tensorprimat.lists", "FRAMEWORKS", "frameworks", "the training stacks of conf/framework"),
    "recipes": ("tensorprimat.recipes", "COMMAND", "main", "the recipes that vendors publish: list, show, import"),
    "demo": ("tensorprimat.demo", "DEMO", "main", "published results and rehearsals, compared in seconds"),
    "completion": ("tensorprimat.cli", "COMPLETION", "completion", "completion of a shell: bash, zsh"),
}

COMPLETION = Command(
    name="completion",
    summary="Print a script that completes tprimat in a shell: source <(tprimat completion bash)",
    words="bash|zsh",
    switches={},
    examples=("bash >> ~/.bashrc", "zsh >> ~/.zshrc"),
)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command named first in `argv`; return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    typed = "python -m tensorprimat" if sys.argv[0].endswith("__main__.py") else "tprimat"
    if not arguments or arguments[0] in ("-h", "--help"):
        rows = [f"  {name:<12}{about}" for name, (*_, about) in COMMANDS.items()]
        print("\n".join([f"usage: {typed} COMMAND …", *rows, f"each with --help; {typed} --version"]))
        return 0 if arguments else 2
    if arguments[0] == "--version":
        raise Answer(f"tensorprimat {VERSION}")
    name, *rest = arguments
    if name not in COMMANDS:
        raise InputError(Problem(name, "no such command", allowed=listed([*COMMANDS]), hint=closest(name, COMMANDS)))
    if name == "launch":
        early.begin(rest)
    module, _, function, _ = COMMANDS[name]
    sys.argv = [f"{typed} {name}", *rest]
    code: int = getattr(import_module(module), function)(rest)
    return code


def commands() -> Iterator[Command]:
    """Yield every command, those of `metrics` and `data` among them."""
    for module, name, _, _ in COMMANDS.values():
        yield getattr(import_module(module), name)
    from corpora.cli import TOKENIZE, VERIFY
    from corpora.recipes import RECIPES
    from estimate.cli import COMMANDS as OF_ESTIMATE
    from metrics.check import CHECK, FLOPS
    from metrics.cli import COST, ENERGY_COMMAND
    from tensorprimat.add_model import ADD
    from tensorprimat.data import INSPECT, PREVIEW
    from tensorprimat.recipes import PARTS

    yield from (COST, ENERGY_COMMAND, CHECK, FLOPS, TOKENIZE, INSPECT, VERIFY, PREVIEW, RECIPES, ADD, *PARTS.values())
    yield from (one for _, one, _ in OF_ESTIMATE.values())


@command
def completion(argv: Sequence[str] | None = None) -> int:
    """Print the script. 0: printed; 2: no such shell."""
    words = COMPLETION.parse(argv).words
    if words not in (("bash",), ("zsh",)):
        raise InputError(Problem("completion", "of which shell?", " ".join(words), "bash, zsh"))
    template = Path(__file__).with_name(f"completion.{words[0]}").read_text(encoding="utf-8")
    # a command of two words before its first word alone: `case` takes the first that fits
    known = sorted(commands(), key=lambda one: -len(one.name.split()))
    cases = []
    for one in known:
        pattern = f"'{one.name}'" if " " in one.name else f"'{one.name} '*"
        cases.append(f"  {pattern}) candidates={shlex.quote(' '.join(dict.fromkeys(_candidates(one))))} ;;")
    print(template.replace("@cases@", "\n".join(cases)).replace("@names@", shlex.quote(" ".join(COMMANDS))), end="")
    return 0


def _candidates(one: Command) -> Iterator[str]:
    """Yield all that may be typed behind `one`: its commands, keys, choices and switches."""
    yield from (other.name.split()[1] for other in commands() if other.name.startswith(f"{one.name} "))
    yield from one.words.split("|") if "|" in one.words else ()
    for key in (*one.keys, *one.known()):
        values = key.choices() if key.choices else ("true", "false") if key.read is switch else ()
        if key.name.endswith(".*"):
            yield from [f"{key.name[:-1]}{entry}=" for entry in values] or [key.name[:-1]]
        else:
            yield from [f"{key.name}={choice}" for choice in values] or [f"{key.name}="]
    yield from (*one.switches, *([OUTPUT] if one.output else []), "--help", "--version")
