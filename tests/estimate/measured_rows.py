"""Choose the rows of conf/tables/measured.csv among those collected in ../shared/data/published_runs.csv, and keep
those of MLPerf Training v5.1, which are not among them: of mlcommons/training_results_v5.1 the median logged step time,
or batch / median rate of blocks, without the first one and the evaluation; the layout is of the submitter's only
configuration whose nodes, batch and accumulation agree.

`UPDATE_GOLDEN=1 pytest tests/estimate/test_fit.py` writes the file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from estimate.measured import SHIPPED, usable
from estimate.rows import noted, table_rows

COLLECTED = Path(__file__).parents[3] / "shared" / "data" / "published_runs.csv"
COLUMNS = (
    *("source_group", "gpu", "gpus", "nodes", "interconnect", "framework", "date", "model", "layers", "layers_run"),
    *("hidden", "ffn", "heads", "kv_heads", "vocab", "experts", "topk", "params_b", "seq", "gbs", "mbs", "tp", "pp"),
    *("vp", "cp", "ep", "dp", "fsdp_zero", "precision", "recompute", "offload_layers", "task", "step_time_used_s"),
    *("confidence", "notes", "source"),
)
LATER = "mlperf-v5.1"
LEFT_OUT = ("vtrain-single",)  # shapes that no model has, on a node that nobody describes


_FOUNDRY = "mosaicml/llm-foundry@8c8dd48f7 scripts/train/benchmarking/README.md"
_LARGE = {"source": f"{_FOUNDRY} [H100 80GB BF16 (Large Scale, >= 128 GPUs]"}
_BRIDGE = {"source_group": "mbridge"}
_TITAN = {"source_group": "torchtitan"}
_ASYNC = {"notes": "AsyncTP"}
_LATER = _BRIDGE | {"date": "26.02.01", "gpu": "GB300", "model": "llama3-70b"}
CORRECTIONS: tuple[tuple[Mapping[str, str], Mapping[str, str]], ...] = (
    (
        _BRIDGE | {"gpus": "256", "model": "llama3.1-405b", "precision": "nvfp4", "recompute": "full:1layers"},
        {"recompute": "none"},
    ),
    (
        _BRIDGE | {"date": "26.02.01", "gpu": "H100", "model": "qwen3-30b-a3b"},
        {"pp": "1", "vp": "1", "ep": "16", "dp": "16"},
    ),
    (_LATER | {"precision": "nvfp4"}, {"mbs": "1", "pp": "4", "vp": "5", "dp": "16"}),
    (_LATER | {"precision": "mxfp8"}, {"mbs": "1", "vp": "5"}),
    (_BRIDGE | {"date": "25.11", "gpu": "H100", "model": "gpt-oss-120b"}, {"mbs": "1"}),
    (_BRIDGE | {"date": "25.11", "gpu": "H100", "model": "qwen3-30b-a3b"}, {"mbs": "1", "vp": "12"}),
    (_BRIDGE | {"date": "25.11", "gpu": "B200", "model": "gpt-oss-120b"}, {"ep": "64"}),
    (_BRIDGE | {"date": "25.11", "gpu": "GB300", "model": "deepseek-v3"}, {"recompute": "selective:mlp+moe_act"}),
    (_BRIDGE | {"date": "25.11", "gpu": "GB300", "model": "qwen3-30b-a3b"}, {"mbs": "8"}),
    (_BRIDGE | {"date": "25.11", "gpu": "GB300", "model": "llama3-8b"}, {"mbs": "4"}),
    (_BRIDGE | {"date": "25.09", "gpu": "GB200", "model": "llama3-70b", "precision": "mxfp8"}, {"mbs": "1"}),
    *((_LARGE | {"model": f"mpt-{size}"}, {"date": "2024-01"}) for size in ("1b", "3b", "7b", "70b")),
    ({"source_group": "dgxc", "framework": "MaxText (JAX)"}, {"recompute": "full"}),
    ({"source_group": "dgxc", "model": "nemotron4-340b"}, {"notes": "PlainTP"}),
    ({"source_group": "simumax-b200", "cp": "2"}, {"notes": "CP-A2A"}),
    ({"source_group": "simumax-b200", "cp": "4"}, {"notes": "CP-A2A"}),
    ({"source_group": "simumax-b200", "cp": "8"}, {"notes": "CP-A2A"}),
    (_TITAN | {"model": "llama3.1-405b", "vp": "2"}, {"mbs": "4", **_ASYNC}),
    (_TITAN | {"model": "llama3.1-405b"}, _ASYNC),
    (_TITAN | {"notes": "2D+AsyncTP; 500W cap"}, _ASYNC),
    (_TITAN | {"notes": "FSDP; 500W cap"}, {"notes": "eager"}),
    (_TITAN | {"notes": "FSDP; seq 8192 is config default (not in table); 500W cap"}, {"notes": "eager"}),
)
"""Rows that their own sources contradict: what is theirs, and what the source has.

Megatron-Bridge (NVIDIA-NeMo/Megatron-Bridge scripts/performance/configs, the recipes). The recomputation was collected
from the recipe for half as many GPUs; that of 256 sets recompute_num_layers=None
(LLAMA31_405B_PRETRAIN_CONFIG_GB200_NVFP4_V2; a layer of each part was proposed and not merged in pull request 3590 of
30 April 2026). The table of 26.02.01 repeats the layout of 26.02, which v0.3.1 has left (pull request 2477 of 23
February 2026); 26.04 is as fast with the layout that v0.3.1 has, too. Of 70B on GB300 it prints layouts of no recipe,
of which one takes 2.8 times the memory that there is; 26.02, v0.3.1 and 26.04 have PP 4. Of GPT-OSS on H100 the table
of 25.11 repeats B200's micro-batch of 4 and its two accumulations, which PP 4 would make eight;
GPT_OSS_120B_H100_BF16_BASE_CONFIG of v0.2.0 has 1, as all later releases. It repeats 25.09's layout of Qwen3 30B on
H100, too, and GB200's micro-batches of it and of Llama 3 8B on GB300 (v0.2.0: QWEN3_30B_A3B_H100_FP8_CS_BASE_CONFIG,
QWEN3_30B_A3B_GB300_FP8_MX_BASE_CONFIG, LLAMA3_8B_GB300_FP8_CS_BASE_CONFIG). Of GPT-OSS on B200 it prints EP 8;
GPT_OSS_120B_B200_BF16_BASE_CONFIG has 64, with which 26.02 is as fast. Where it counts accumulations, they are of what
it prints; 26.02 takes as long on H100 with the recipe's layout, and of GB300 only the recipes speak for theirs. Qwen3
235B on B200 is left as printed: with VP 4 and an overlapped exchange, as its recipe has it, it would take a fifth
longer than it did. DeepSeek V3 on GB300 recomputes what the branch that has its layouts does (2afd5bc6f). Of 70B on
GB200 in MXFP8 the table of 25.09 counts 16 accumulations, which a micro-batch of 1 makes, as its recipe has.

NVIDIA's recipes overlap tensor-parallel collectives, but for Nemotron 340B (NVIDIA/dgxc-benchmarking@v25.02
nemotron/nemotron4-340b-synth.yaml: ub_tp_comm_overlap False). MaxText keeps
queries, keys and values alone (v25.04.02 maxtext/configure.sh: remat_policy save_qkv_proj), which is taken as nothing.

SimuMax (MooreThreads/SimuMax@4dcaae5 docs/b200/b200_real_repro_guide.md) exchanges heads over the context.

torchtitan (pytorch/torchtitan@b5bcd76c benchmarks). All of 405B ran with asynchronous tensor parallelism (the titles of
tables 5 and 6). Its interleaved run states a local batch of 32 and nothing of micro-batches: at 9dec370, which ran, a
step has as many as the pipeline has ranks (pipelining_utils.py, build_pipeline_schedule), eight of 4, and two stages a
rank (generate_split_points). Its 1.28 times the speed of one stage a rank says the same: the bubbles of eight
micro-batches give 1.30, those of 32 give 1.10. Rows of "FSDP" beside "FSDP + torch.compile" ran without it.
"""


def corrected(cells: Mapping[str, str]) -> Mapping[str, str]:
    """Return the cells of a row, without what its own source contradicts."""
    for theirs, ours in CORRECTIONS:
        if all(cells.get(name) == text for name, text in theirs.items()):
            return {**cells, **ours}
    return cells


def built() -> str:
    """Return the text of the file. Of the notes only what the reader of rows uses is kept."""
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in table_rows(COLLECTED):
        if usable(row) and row.cells["source_group"] not in LEFT_OUT:
            cells = corrected(row.cells)
            notes = cells["notes"]
            used = noted(notes) or any(word in notes.lower() for word in ("mtp", "dense_layers"))
            writer.writerow({**cells, "notes": notes if used else ""})
    with SHIPPED.open(newline="", encoding="utf-8") as shipped:
        writer.writerows(row for row in csv.DictReader(shipped) if row["source_group"] == LATER)
    return file.getvalue()
