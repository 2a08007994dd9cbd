"""The values that `tprimat models add` takes for missing keys, against the classes of transformers themselves."""

from __future__ import annotations

import json
import subprocess

import pytest

from conf.vocabulary import read_yaml
from launchers.hugging_face import TABLE

pytestmark = pytest.mark.nvidia
PROGRAM = """
import json, sys, transformers
known = {name: transformers.CONFIG_MAPPING[name]().to_dict() for name in json.load(sys.stdin)}
json.dump([transformers.__version__, known], sys.stdout)
"""


def test_a_missing_key_is_what_the_library_takes(nemo_python: str) -> None:
    table = read_yaml(TABLE)
    ours = {name: family for name, family in table["families"].items() if family["missing"]}
    done = subprocess.run(
        [nemo_python, "-c", PROGRAM], input=json.dumps([*ours]), capture_output=True, text=True, check=True
    )
    release, classes = json.loads(done.stdout)
    assert f"transformers {release}" == table["library"]
    wrong = []
    for name, family in ours.items():
        theirs = classes[name]
        for key, value in family["missing"].items():
            # the class may name the quotient of its own sizes, and says nothing of what its programs have as a constant
            if isinstance(value, dict):
                value = theirs[value["over"][0]] // theirs[value["over"][1]]
            if key not in family.get("sources", {}) and theirs.get(key, value) not in (value, None):
                wrong.append((name, key, value, theirs[key]))
        for key, row in family.get("only", {}).items():
            if key not in family["missing"] and theirs.get(key, row["value"]) not in (row["value"], None):
                wrong.append((name, key, row["value"], theirs[key]))
        absent = {key for key in family.get("only", {}) if key not in theirs}
        assert absent == {*family.get("constant", ())}, (
            f"{name}: what the class does not have is not said to be its own"
        )
    assert wrong == []
