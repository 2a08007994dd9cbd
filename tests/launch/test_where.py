"""Which code a run is of: the mark of changes is part of its identity."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from launchers import where


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
