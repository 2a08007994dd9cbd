"""The image and the software that a log and a record name; what they do not say is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from parsers import Ending, Record, assemble, judge, parse
from parsers.given import with_given
from parsers.software import printed

FIXTURES = Path(__file__).parent / "fixtures"
BARE = Record(id="a1", name="tiny", provenance="measured", status="running")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node1:12:12 [0] NCCL INFO x\nNCCL version 2.99.1+cuda19.9\n", {"nccl_printed": "2.99.1+cuda19.9"}),
        ("RCCL version 2.98.3+hip9.0 HEAD:0123abc+\n", {"nccl_printed": "2.98.3+hip9.0"}),
        (
            "RCCL version : 2.97.5-HEAD:0123abc\nHIP version  : 9.3.1\nROCm version : 9.3.3.0-74-0123abc\n",
            {"nccl_printed": "2.97.5-HEAD", "rocm_printed": "9.3.3.0-74-0123abc"},
        ),
        ("== PyTorch ==\nPyTorch Version 9.1.0a0+0123abc\n", {"torch_printed": "9.1.0a0+0123abc"}),
        ("| NVIDIA-SMI 990.1    Driver Version: 990.32.03    CUDA Version: 19.2 |\n", {"driver_printed": "990.32.03"}),
        ("NCCL version 2.99.1+cuda19.9\nNCCL version 2.98.0\n", {}),  # two libraries: unknown which
        (
            '{"cuda_version":"19.4.1.003","nccl_version":"2.99.5", "cublas_version": "19.4.5.8"}\\n',
            {"cuda_version": "19.4.1.003", "nccl_version": "2.99.5", "cublas_version": "19.4.5.8"},
        ),
        ("NCCL version unknown\n", {}),
    ],
)
def test_lines_of_libraries(text: str, expected: dict[str, str]) -> None:
    assert dict(printed(text.encode())) == expected


def of(about: Record, *lines: str, log: str = "engine.log", **marked: Any) -> Record:
    """Return the record of a log that begins with a mark of facts and some lines."""
    facts = [f"[tprimat] facts {json.dumps(marked)}"] if marked else []
    parsed = parse([*facts, *lines, *(FIXTURES / log).read_text(encoding="utf-8").splitlines()])
    return assemble(parsed, judge(Ending(exit_code=0), parsed), about)


def test_who_says_what_image_it_was() -> None:
    def known(record: Record) -> tuple[str | None, str | None, str | None]:
        return record.image, record.image_source, record.image_digest

    given = replace(BARE, image="asked:1", image_source="given")
    ran = replace(BARE, image="asked:1", image_source="runtime", image_digest="sha256:1")
    within = {"image": "within:2", "image_source": "environment"}
    assert known(of(BARE)) == (None, None, None)
    assert known(of(given)) == ("asked:1", "given", None)
    assert known(of(BARE, image="asked:1")) == ("asked:1", "given", None)  # a bundle of an earlier version
    assert known(of(given, **within)) == known(of(BARE, **within)) == ("within:2", "environment", None)
    assert known(of(ran, **within)) == ("asked:1", "runtime", "sha256:1")
    lied = {"image": "x", "image_source": "runtime", "image_digest": "sha256:2"}
    assert known(of(BARE, **lied)) == ("x", "given", None), "a log is no runtime"
    started = "[INFO] [container] Final image: rocm/primus:v9.9"
    bundle = {"image": "asked:1", "image_source": "given"}
    assert known(of(BARE, started, log="primus_c1.log", **bundle)) == ("rocm/primus:v9.9", "environment", None)
    assert known(with_given(of(BARE), {"image": "typed:3"})) == ("typed:3", "given", None)
    assert known(with_given(of(BARE, **within), {"image": "typed:3"})) == ("within:2", "environment", None)
    assert not {"image", "image_source", "image_digest", "image_started"} & of(ran, **within).environment.keys()


def test_a_version_at_the_beginning_of_a_log_is_a_fact_of_the_record() -> None:
    assert of(BARE, "NCCL version 2.99.1+cuda19.9").environment["nccl_printed"] == "2.99.1+cuda19.9"
