"""`tprimat completion bash|zsh`: a script that completes commands, keys, their choices and switches."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from conf.arguments import Command
from conf.errors import InputError, Problem, command
from tensorprimat.cli import COMMANDS, commands

COMPLETION = Command(
    name="completion",
    summary="Print a script that completes tprimat in a shell: source <(tprimat completion bash)",
    words="bash|zsh",
    switches={},
    examples=("bash >> ~/.bashrc", "zsh >> ~/.zshrc"),
)
# In bash a word ends at =, so that of model=lla only lla is replaced.
_BASH = """_tprimat() {{
  local line=${{COMP_LINE:0:COMP_POINT}} words cut
  local word=${{line##* }}
  case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}" in
{cases}
  esac
  if ((COMP_CWORD == 1)); then words={names}; fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  [[ $word != *=* ]] || cut=${{word%"${{word##*=}}"}}
  COMPREPLY=("${{COMPREPLY[@]#"${{cut:-}}"}}")
  [[ ${{COMPREPLY[0]:-}} != *= ]] || compopt -o nospace
}}
complete -o default -F _tprimat tprimat
"""
_ZSH = """#compdef tprimat
_tprimat() {{
  local -a all
  local words_of
  case "${{words[2]}} ${{words[3]}}" in
{cases}
  esac
  ((CURRENT == 2)) && words_of={names}
  all=(${{=words_of}})
  compadd -S '' -- $all
  _files
}}
compdef _tprimat tprimat
"""


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Print the script. 0: printed; 2: no such shell."""
    words = COMPLETION.parse(argv).words
    if words not in (("bash",), ("zsh",)):
        raise InputError(Problem("completion", "of which shell?", " ".join(words), "bash, zsh"))
    template, variable = (_BASH, "words") if words == ("bash",) else (_ZSH, "words_of")
    # a command of two words before its first word alone: `case` takes the first that fits
    known = sorted(commands(), key=lambda one: -len(one.name.split()))
    cases = []
    for one in known:
        pattern = f"'{one.name}'" if " " in one.name else f"'{one.name} '*"
        cases.append(f"  {pattern}) {variable}={shlex.quote(' '.join(_candidates(one)))} ;;")
    print(template.format(cases="\n".join(cases), names=shlex.quote(" ".join(COMMANDS))), end="")
    return 0


def _candidates(one: Command) -> Iterator[str]:
    """Yield all that may be typed behind `one`: its commands, keys, choices and switches."""
    yield from (other.name.split()[1] for other in commands() if other.name.startswith(f"{one.name} "))
    for key in (*one.keys, *one.known):
        if key.name.endswith(".*"):
            yield f"{key.name[:-1]}"
        else:
            yield from [f"{key.name}={choice}" for choice in key.choices()] if key.choices else [f"{key.name}="]
    yield from (*one.switches, "--help", "--version")
