"""Rows of a table of runs as jobs: what is read, derived, defaulted and refused, and that nothing raises."""

from __future__ import annotations

import csv
import io
from dataclasses import fields
from math import isnan, log
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.errors import InputError
from conf.recipes import recipes
from estimate.cells import hardware_named, network_bandwidth, recompute, stack
from estimate.completion import completed
from estimate.fitted import shipped
from estimate.jobs import Jobs
from estimate.row_shape import parameters, row_shape
from estimate.rows import jobs_of, read_row, read_rows, table_rows
from estimate.step_time import step_time
from estimate.switches import followed, is_of, switches
from estimate.tables import judged, predict_table
from metrics.shape import shape_of_model

COLLECTED = Path(__file__).parents[3] / "shared" / "data" / "published_runs.csv"
HEADER = """gpu,gpus,nodes,interconnect,framework,model,params_b,layers,hidden,ffn,heads,kv_heads,vocab,seq,gbs,mbs,tp,\
pp,vp,cp,ep,dp,fsdp_zero,precision,recompute,task,date"""
LINE = """H100,64,8,NVLink+IB400,Megatron-Core,llama3-70b,70.552,80,8192,28672,64,8,128256,8192,128,1,4,4,5,2,1,2,\
distopt(zero1),bf16,none,pretrain,v25.04.02"""
LLAMA = dict(zip(HEADER.split(","), LINE.split(","), strict=True))
MAY_BE_UNKNOWN = {"cuda_graphs", "flex_dispatcher", "overlapped_experts", "embedding_counts"}
COLUMNS = sorted({*LLAMA, "offload_layers", "experts", "topk", "notes"})


def test_the_notes_of_a_row_say_how_it_ran() -> None:
    """Experts that drop tokens are one product, which the host starts once: a vendor's own note is read."""
    mixture = LLAMA | {"model": "qwen3-30b-a3b", "gpu": "B200", "gpus": "8", "tp": "1", "pp": "1", "vp": "1"}
    mixture |= {"ep": "8", "dp": "8", "params_b": "", "layers": "", "hidden": "", "ffn": "", "heads": "", "vocab": ""}
    mixture |= {"kv_heads": "", "nodes": "1", "cp": "1", "precision": "mxfp8"}
    dropless, padded = (read_row(mixture | {"notes": note}) for note in ("(dropless)", "(tokendrop) by the vendor"))
    assert dropless.job is not None
    assert padded.job is not None
    assert (dropless.job["padded_experts"], padded.job["padded_experts"]) == (0, 1)
    slow, fast = step_time(jobs_of([dropless.job, padded.job]), shipped()).total
    assert slow > 1.2 * fast


def test_a_row_of_torchtitan_says_how_it_ran() -> None:
    row = read_row(LLAMA | {"framework": "torchtitan", "notes": "eager AsyncTP; rowwise"})
    assert row.job is not None
    assert [row.job[name] for name in ("uncompiled", "overlapped_tensor", "fp8_by_rows")] == [1, 1, 1]
    known = {recipe.name: switches(recipe) for recipe in recipes("torchtitan-0.2.2", "llama31_70b")}
    ours = next(found for name, found in known.items() if "async_tp" in name)
    assert [ours[name] for name in ("uncompiled", "overlapped_tensor", "fp8_by_rows")] == [0, 1, 0]


LORA = {
    "framework": "MLPerf AMD",
    "date": "v5.1",
    "source_group": "mlperf-v5.1",
    "model": "llama2-70b",
    "gpu": "MI300X",
}
LORA |= {"gpus": "8", "nodes": "1", "seq": "8192", "gbs": "8", "tp": "1", "pp": "1", "vp": "1", "dp": "8", "cp": "1"}
LORA |= {"precision": "fp8", "task": "lora", "params_b": "", "layers": "", "hidden": "", "ffn": "", "heads": ""}
LORA |= {"kv_heads": "", "vocab": ""}


@pytest.mark.parametrize(("recompute", "share"), [("", 21 / 80), ("none", 0.0)])
def test_a_row_of_mlperf_ran_as_its_submission_configures(recompute: str, share: float) -> None:
    """AMD's on MI300X recompute the first 21 of 80 layers, and keep weights in fp8; what a row states counts."""
    row = read_row(LORA | {"recompute": recompute})
    assert row.job is not None, row.refused
    known = [row.job[name] for name in ("recompute_layers", "fp8_params", "fp8_activations", "cuda_graphs")]
    assert known == [share, 1, 1, 0]
    assert "recompute" not in row.missing


def test_ranks_of_context_exchange_heads_in_submissions_that_say_so() -> None:
    """CP_COMM_TYPE of NVIDIA's LoRA is a2a on Blackwell; v4.1 on H200 had a ring. A note says it of any row."""
    old = LORA | {"framework": "MLPerf NVIDIA", "date": "v4.1", "source_group": "mlperf-v4.1", "cp": "2", "dp": "4"}
    rows = [read_row(old | cells) for cells in ({"gpu": "B200"}, {"gpu": "H200"}, {"gpu": "H200", "notes": "CP-A2A"})]
    assert [row.job and row.job["cp_a2a"] for row in rows] == [1, 0, 1], [row.refused for row in rows]
    assert all("as its release had them" in " ".join(row.notes) for row in rows)


@pytest.mark.parametrize("cells", [{"cp": "16", "gpus": "128", "nodes": "16"}, {"model": "deepseek-v3"}])
def test_heads_that_cannot_be_exchanged_are_refused(cells: dict[str, str]) -> None:
    own = {"framework": "Megatron-LM", "source_group": "", "gpu": "H100", "notes": "CP-A2A", "cp": "8", "gbs": "64"}
    row = read_row(LORA | own | {"gpus": "64", "nodes": "8", "task": "pretrain", "precision": "bf16"} | cells)
    assert row.job is None
    assert "CP-A2A" in row.refused


@pytest.mark.parametrize(("note", "flex"), [("HybridEP", 1), ("DeepEP", 1), ("alltoall", 0)])
def test_a_note_says_how_tokens_reach_experts(note: str, flex: int) -> None:
    cells = LORA | {"framework": "Megatron-LM", "source_group": "", "model": "mixtral-8x7b", "gpu": "H100", "ep": "8"}
    row = read_row(cells | {"task": "pretrain", "precision": "bf16", "notes": note})
    assert row.job is not None, row.refused
    assert row.job["flex_dispatcher"] == flex


@pytest.mark.parametrize(
    "cells", [{"gpu": "AMD Instinct MI300X"}, {"precision": "FP8-DS"}, {"precision": ""}, {"tp": "1.0"}]
)
def test_how_a_submission_ran_is_found_however_a_row_spells_it(cells: dict[str, str]) -> None:
    plain, spelled = read_row(LORA), read_row(LORA | cells)
    assert plain.job is not None
    assert spelled.job is not None, spelled.refused
    assert {name for name in plain.job if plain.job[name] != spelled.job[name]} <= MAY_BE_UNKNOWN
    assert "graphs and overlap, and what it leaves open, as its release had them" in spelled.notes


@pytest.mark.parametrize(("note", "ranks"), [("ETP2", 2), ("(etp4)", 4), ("ETP0", 1), ("", 1)])
def test_experts_are_split_as_a_note_says(note: str, ranks: int) -> None:
    row = read_row(LLAMA | MIXTURE | {"notes": note})
    assert row.job is not None, row.refused
    assert row.job["expert_tensor_parallel_size"] == ranks


GROK = {"framework": "NeMo", "model": "grok1-314b", "date": "v25.04.02", "gpus": "512", "nodes": "64", "seq": "8192"}
GROK |= {"gbs": "1024", "mbs": "1", "tp": "4", "pp": "8", "vp": "8", "cp": "2", "ep": "8", "dp": "8", "gpu": "H100"}
GROK |= {"source_group": "", "precision": "bf16", "task": "pretrain"}


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({}, (4, 1, 0, 0)),
        ({"date": "v25.05.05"}, (1, 1, 0, 0)),
        ({"date": "v25.05.05", "gpu": "GB200", "pp": "1", "vp": "1", "cp": "1", "dp": "128"}, (4, 1, 0, 1)),
        ({"notes": "ETP2 dropless"}, (2, 0, 0, 0)),
    ],
)
def test_experts_are_split_and_padded_as_the_release_had_them(cells: dict[str, str], expected: tuple[int, ...]) -> None:
    """v25.04.02 says nothing of it, and Megatron-Core splits experts as tensors; what notes say counts."""
    row = read_row(GROK | cells)
    assert row.job is not None, row.refused
    names = ("expert_tensor_parallel_size", "padded_experts", "flex_dispatcher", "cuda_graphs")
    assert tuple(row.job[name] for name in names) == expected


@pytest.mark.parametrize(
    ("cells", "tokens"),
    [
        ({"framework": "NeMo", "task": "lora"}, 190),
        ({"framework": "NeMo", "task": "sft"}, 190),
        ({"framework": "NeMo", "task": "pretrain"}, 0),
        ({"framework": "MLPerf NVIDIA", "task": "lora"}, 0),
        ({"framework": "NeMo", "task": "lora", "notes": "packed512"}, 512),
        ({"framework": "NeMo", "task": "lora", "notes": "unpacked"}, 0),
    ],
)
def test_samples_that_share_a_sequence_are_those_of_the_stack_or_of_a_note(cells: dict[str, str], tokens: int) -> None:
    row = read_row(LLAMA | cells)
    assert row.job is not None, row.refused
    assert row.job["packed_tokens"] == tokens
    assert any("190 tokens packed" in note for note in row.notes) == (tokens == 190)


def test_experts_that_take_more_gpus_than_a_stage_has_are_refused() -> None:
    assert "EP × ETP = 64 is more than the 32 GPUs of a stage" in read_row(LLAMA | MIXTURE | {"notes": "ETP8"}).refused


MIXTURE = {"model": "qwen3-30b-a3b", "gpus": "32", "nodes": "4", "tp": "4", "pp": "1", "vp": "1", "ep": "8", "dp": "8"}
MIXTURE |= {"cp": "1", "mbs": "1"} | dict.fromkeys(
    ("params_b", "layers", "hidden", "ffn", "heads", "kv_heads", "vocab"), ""
)


def test_a_row_with_adapters_follows_no_recipe() -> None:
    """All recipes train all weights: what one of the same layout gathers or overlaps says nothing of it."""
    cells = LLAMA | {"framework": "NeMo"}
    whole, adapted = read_row(cells), read_row(cells | {"task": "lora"})
    assert any("by the recipe" in note for note in whole.notes)
    assert not any("by the recipe" in note for note in adapted.notes)


@pytest.mark.parametrize(
    ("cells", "overlapped"),
    [
        ({"framework": "NeMo"}, 1),
        ({"framework": "NeMo", "notes": "PlainTP"}, 0),
        ({"framework": "NeMo", "task": "lora"}, 0),
        ({"framework": "Megatron-Bridge", "task": "lora"}, 1),
        ({"framework": "Megatron-Bridge", "gpu": "GB200", "precision": "nvfp4"}, 0),
        ({"framework": "Megatron-LM"}, 0),
        ({"framework": "MLPerf NVIDIA", "date": "v3.0"}, 1),
        ({"framework": "MLPerf AMD", "date": "v3.0", "gpu": "MI300X"}, 0),
    ],
)
def test_collectives_overlap_products_where_a_framework_lets_them(cells: dict[str, str], overlapped: int) -> None:
    row = read_row(LLAMA | {"gbs": "512", "date": ""} | cells)
    assert row.job is not None, row.refused
    assert row.job["overlapped_tensor"] == overlapped
    assumed = "products overlap TP's collectives, as in published runs of its framework"
    by_release = any("as its release had them" in note for note in row.notes)
    assert (assumed in row.notes) == (overlapped == 1 and not by_release)


@pytest.mark.parametrize(("framework", "size"), [("Megatron-Bridge", 2), ("NeMo", 2), ("Megatron-LM", 4)])
def test_gradients_are_reduced_as_the_benchmarks_of_a_framework_do(framework: str, size: int) -> None:
    """In bf16 by all of NVIDIA's, whose recipe a row need not follow."""
    row = read_row(LLAMA | {"framework": framework, "date": "", "gbs": "512", "mbs": "2"})
    assert row.job is not None
    assert row.job["gradient_bytes"] == size


def test_a_complete_row_is_a_job_without_defaults() -> None:
    row = read_row(LLAMA | {"notes": "PlainTP"})
    assert (row.refused, row.missing, row.notes) == ("", frozenset(), ())
    assert row.job is not None
    assert {*row.job} == {field.name for field in fields(Jobs)}
    jobs = jobs_of([row.job])
    assert (jobs.count, jobs.world_size[0], jobs.num_micro_batches[0]) == (1, 64, 64)
    assert (jobs.stack[0], jobs.hardware[0]) == ("megatron_core-25.04.02", "h100")
    assert (jobs.nic_bandwidth[0], jobs.sequence_parallel[0], jobs.num_query_groups[0]) == (50e9, 1, 8)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu": "=cmd('x')"}, "no facts of a GPU"),
        ({"gpu": ""}, "gpu: empty"),
        ({"gpus": ""}, "gpus: empty"),
        ({"gpus": "-8"}, "no integer"),
        ({"gpus": "1e400"}, "no integer"),
        ({"dp": "4"}, "is not 64 GPUs"),
        ({"tp": "3", "dp": ""}, "is not 64 GPUs"),
        ({"tp": "16", "pp": "1", "vp": "1"}, "which TP 16 does not divide"),
        ({"gbs": "127"}, "does not divide"),
        ({"gbs": "130", "mbs": "1", "pp": "4"}, "interleaving needs a multiple"),
        ({"pp": "16", "vp": "8", "tp": "1"}, "parts of 80 layers"),
        ({"ep": "2"}, "has no experts"),
        ({"model": "x", "layers": ""}, "not stated: layers"),
        ({"model": "x", "hidden": "8e17"}, "no integer"),
        ({"model": "x", "heads": "9000"}, "heads of a hidden size"),
        ({"precision": "fp3"}, "precision: 'fp3' is none of"),
        ({"precision": "nvfp4"}, "no peak of fp4 is known of h100"),
        ({"interconnect": "IB999999"}, "interconnect: 'IB999999' is more than 10,000 Gbit/s of a GPU"),
        ({"gpu": "MI355X", "precision": "nvfp4"}, "mi355x has no units for nvfp4, which another maker's GPUs have"),
        ({"gpus": "2000000", "dp": ""}, "gpus: 2,000,000 is more than the 1,000,000"),
        ({"seq": "1e12"}, "seq: 1,000,000,000,000 is more than the 100,000,000"),
        ({"gbs": "1e15"}, "gbs: 1,000,000,000,000,000 is more than the 10,000,000"),
        ({"precision": "MXFP8"}, "h100 has no units for mxfp8"),
        ({"recompute": "everything"}, "recompute: 'everything' is none of"),
        ({"recompute": "full:81layers"}, "'full:81layers' of a model of 80 layers: at most full:80layers"),
        ({"task": "inference"}, "task:"),
        ({"seq": "8190"}, "must divide by"),
    ],
)
def test_a_row_that_is_no_job_says_why(change: dict[str, str], reason: str) -> None:
    row = read_row(LLAMA | change)
    assert row.job is None
    assert reason in row.refused


@pytest.mark.parametrize(
    ("cells", "note"),
    [
        ({"nodes": "3"}, "nodes 3 not used: 64 GPUs would be 21.3 a node; nodes of 8 taken, as h100 has them"),
        ({"nodes": "2"}, "nodes 2 not used: 64 GPUs would be 32 a node"),
        ({"params_b": "3"}, "'llama3-70b' has 70.55 billion parameters, params_b says 3"),
        ({"params_b": "70B"}, "params_b: '70B' is no number of billions, and not used"),
        ({"interconnect": "pigeons"}, "interconnect: 'pigeons' not understood"),
        ({"interconnect": "IB-7"}, "interconnect: 'IB-7' not understood"),
        ({"date": "notadate"}, "date: 'notadate' is neither a date nor a release, and not used"),
        ({"recompute": "full:60layers"}, "recompute 'full:60layers': all layers, for a part of the pipeline has 4"),
        ({"gpu": "GH200"}, "gpus_per_domain of gh200 is not known: taken as 1"),
        ({"gpu": "GH200", "interconnect": ""}, "network of 400 Gbit/s per GPU assumed"),
    ],
)
def test_a_cell_that_contradicts_another_or_says_nothing_is_said(cells: dict[str, str], note: str) -> None:
    row = read_row(LLAMA | cells)
    assert row.job is not None, row.refused
    assert note in "; ".join(row.notes)


@pytest.mark.parametrize(
    "cells",
    [
        *[{"gpus": "20", "nodes": "3", "tp": "1", "pp": "1", "vp": "1", "cp": "1", "dp": "", "gbs": "40"}],
        *[{"params_b": "75"}, {"params_b": "0"}, {"interconnect": "IB400 (Eos)"}, {"recompute": "full:4layers"}],
        *[{"gpu": "GH200", "gpus": "1", "nodes": "1", "tp": "1", "pp": "1", "vp": "1", "cp": "1", "dp": ""}],
        *[{"date": "2025-06"}, {"date": "0.9.0rc1"}, {"date": ""}, {"layers_run": "40", "params_b": "35"}],
        *[{"date": "June 2024"}, {"date": "2024-06-01 00:00:00"}, {"date": "0.12.0+cu128"}, {"date": "core_v0.12.0"}],
    ],
)
def test_cells_that_agree_are_not_said(cells: dict[str, str]) -> None:
    row = read_row(LLAMA | {"notes": "PlainTP"} | cells)
    assert row.job is not None, row.refused
    assert {*row.notes} <= {"40 of 80 layers"}


@pytest.mark.parametrize("cell", ["RoCEv2 400G", "400GbE", "EFAv2", "IB NDR", "Slingshot-11", "Ethernet 100Gb"])
def test_a_network_that_people_write_is_understood(cell: str) -> None:
    assert not any("not understood" in note for note in read_row(LLAMA | {"interconnect": cell}).notes)


def test_an_interval_is_wider_where_a_guess_decides_the_step(tmp_path: Path) -> None:
    """Virtual stages, context and micro-batches hardly move a step: intervals hold it as they are (guide, Tables)."""
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    emptied = ("interconnect", "vp", "cp", "mbs", "tp", "gbs", "precision")
    rows = [HEADER, *(",".join((LLAMA | {name: ""}).values()) for name in emptied)]
    source.write_text("\n".join(rows).replace(",2,distopt", ",,distopt"))
    assert predict_table(source, target) == (len(emptied), 0)
    predicted = [*csv.DictReader(target.read_text().splitlines())]
    widths = [log(float(row["predicted_step_time_high_s"]) / float(row["predicted_step_time_s"])) for row in predicted]
    assert [width / widths[0] for width in widths] == pytest.approx([1, 1, 1, 1, 4, 4, 4], rel=1e-3)
    low, step, high = (float(predicted[-1][f"predicted_step_time_{end}s"]) for end in ("low_", "", "high_"))
    assert high / step == pytest.approx(step / low, rel=1e-4)  # the peak of a guessed precision bounds nothing


def test_a_cell_that_says_that_it_is_empty_is() -> None:
    empty = read_row(LLAMA | dict.fromkeys(("mbs", "vp", "recompute"), ""))
    for word in ("N/A", "-", "nan", "NULL", "?", "unknown"):
        assert read_row(LLAMA | dict.fromkeys(("mbs", "vp", "recompute"), word)).job == empty.job
    assert read_row(LLAMA | {"mbs": "None", "vp": "none"}).missing == {"mbs", "vp"}


def test_what_is_not_stated_is_said() -> None:
    row = read_row(LLAMA | dict.fromkeys(("mbs", "vp", "recompute", "precision", "dp", "interconnect"), ""))
    assert row.missing == {"mbs", "vp", "recompute", "precision"}
    assert "VP not stated" in " ".join(row.notes)
    assert row.job is not None
    assert row.job["data_parallel_size"] == 2


def test_a_model_of_ours_brings_what_the_columns_lack() -> None:
    qwen = {"model": "Qwen/Qwen3-30B-A3B", "layers": "48", "hidden": "2048", "ffn": "768", "heads": "32"}
    known = row_shape(qwen | {"kv_heads": "4", "vocab": "151936", "experts": "128", "topk": "8"})
    assert (known.shape.kv_channels, known.notes) == (128, ())
    with pytest.raises(ValueError, match="layers_run: 300 is more than the 61 layers"):
        row_shape({"model": "deepseek-v3", "layers_run": "300"})
    deep = row_shape({"model": "deepseek-v3", "layers_run": "4"})
    assert deep.shape.mla is not None
    assert (deep.shape.num_layers, deep.shape.dense_layers, deep.shape.mtp_num_layers) == (4, 3, 0)
    other = row_shape({**LLAMA, "hidden": "4096", "params_b": ""})
    assert other.notes[0] == "not our llama3-70b: hidden 4096, ours has 8192"


@pytest.mark.parametrize(("name", "billions"), [("deepseek-v2", 235.741), ("kimi-k2", 1026.407)])
def test_models_beside_ours_have_their_published_size(name: str, billions: float) -> None:
    assert parameters(row_shape({"model": name}).shape) / 1e9 == pytest.approx(billions, rel=1e-3)


def test_gate_and_tied_output_follow_from_the_number_of_parameters() -> None:
    gpt = {"model": "a", "layers": "96", "hidden": "12288", "ffn": "49152", "heads": "96", "vocab": "51200"}
    plain = row_shape(gpt | {"params_b": "174.6"}).shape
    gated = row_shape(gpt | {"params_b": "232.5"}).shape
    assert (plain.gated_linear_unit, gated.gated_linear_unit) == (False, True)
    assert "taken as not gated" in " ".join(row_shape(gpt).notes)
    assert "params_b says 400" in row_shape(gpt | {"params_b": "400"}).notes[-1]


def test_a_shape_has_the_parameters_of_its_model() -> None:
    from conf.load import model_named
    from conf.shapes import count

    for name in ("llama31_8b", "llama32_1b", "mixtral_8x7b", "deepseek_v2_lite", "qwen3_30b_a3b"):
        model = model_named(name)
        assert model
        assert parameters(shape_of_model(model)) == pytest.approx(count(model).total, rel=2e-3)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *[("A100-80 (paper: 'Ampere')", "a100"), ("NVIDIA H100 80GB HBM3", "h100"), ("H100-80GB-HBM3", "h100")],
        *[("H100-96G-HBM2e-500W", "h100_hbm2e"), ("NVIDIA B200-SXM-180GB", "b200"), ("DGX-GB200", "gb200")],
        *[("A100-40G", "a100_40gb"), ("A100 80G", "a100"), ("H100-PCIE-80GB", "h100_pcie"), ("8xH100", "h100")],
        *[("MI300X OAM", "mi300x"), ("AMD Instinct MI325X 256GB HBM3e", "mi325x"), ("A800-SXM4-80GB", "a800")],
    ],
)
def test_gpus_by_the_names_that_people_use(text: str, name: str) -> None:
    assert hardware_named(text).name == name


@pytest.mark.parametrize(
    "text",
    ["H100 40GB", "H100 NVL", "A100 80GB PCIe", "V100-SXM2-32GB", "80GB", "DGX", "H100 80GB HBM2e", "H100 SXM / PCIe"],
)
def test_another_gpu_is_not_taken_for_one_that_is_known(text: str) -> None:
    with pytest.raises(ValueError, match="no facts of a GPU"):
        hardware_named(text)


@pytest.mark.parametrize(
    ("text", "gbit"),
    [
        *[("NVLink+IB400", 400), ("RoCE1600Gb/node", 200), ("NVLink3+IB200x8 (Selene)", 200)],
        *[("NVLink3+4xOPA100", 50), ("xGMI+8x400Gb (not stated)", 400), ("NVL72+IB", 200), ("NVLink3", 200)],
        *[("4 * 100Gb RoCE", 50), ("RoCE 8x200G", 200), ("8x CX-7 400G", 400), ("PCIe4 x16", 200)],
        *[("NVLink 18x25GB/s", 200), ("8x80GB", 200), ("PCIe Gen5 x16", 200)],
    ],
)
def test_networks_as_rows_spell_them(text: str, gbit: float) -> None:
    rate, note = network_bandwidth(text, hardware_named("A100-80"), 8)
    assert rate == gbit * 1e9 / 8
    assert bool(note) == (text in ("NVL72+IB", "NVLink3") or "PCIe" in text or "GB" in text)


def test_recomputation_as_rows_spell_it() -> None:
    assert recompute("full?", 1, 24).layers == 1
    assert recompute("full:5layers", 4, 80).layers == 0.25
    assert recompute("selective", 1, 24).modules == {"core_attn"}
    assert recompute("selective:norm+mla_up", 1, 24).modules == {"layernorm", "mla_up_proj"}
    assert recompute("mlp+layernorm", 1, 24).modules == {"mlp", "layernorm"}
    assert recompute("selective op", 1, 24) == recompute("selective-op", 1, 24)
    assert [recompute(text, 4, 80).layers for text in ("full AC", "True", "full:uniform", "full:5")] == [1, 1, 1, 0.25]


@pytest.mark.parametrize(
    ("cells", "same"),
    [
        *[({"precision": "amp_bf16"}, {}), ({"precision": "BF16 mixed precision"}, {}), ({"task": "pretraining"}, {})],
        *[({"precision": "float8 rowwise"}, {"precision": "fp8"}), ({"seq": "8k"}, {}), ({"seq": "8,192"}, {})],
        *[({"fsdp_zero": "ZeRO 3"}, {"fsdp_zero": "zero-3"}), ({"fsdp_zero": "HYBRID_SHARD"}, {"fsdp_zero": "hsdp"})],
        *[({"fsdp_zero": "fsdp2 (64)"}, {"fsdp_zero": "fsdp2"}), ({"fsdp_zero": "zero1=8"}, {"fsdp_zero": "zero1"})],
        ({"task": "full fine-tuning"}, {"task": "sft"}),
        *[({"model": "meta-llama/Meta-Llama-3-70B"}, {}), ({"model": "Llama3-70B-Instruct"}, {})],
    ],
)
def test_a_cell_means_what_its_other_spelling_means(cells: dict[str, str], same: dict[str, str]) -> None:
    one, other = read_row(LLAMA | cells), read_row(LLAMA | same)
    assert one.job is not None and one.job == other.job, one.refused


@pytest.mark.parametrize(
    ("name", "other"),
    [
        *[("Mixtral-8x7B-v0.1", "mixtral_8x7b"), ("DeepSeek V3 671B", "deepseek_v3"), ("Grok-1", "grok1-314b")],
        *[("Qwen3 MoE 30B", "qwen3_30b_a3b"), ("Qwen3-MoE-235B-A22B", "qwen3-235b-a22b")],
        ("Nemotron-340B", "nemotron4-340b"),
    ],
)
def test_a_model_is_known_by_the_names_that_sources_write(name: str, other: str) -> None:
    assert row_shape({"model": name}) == row_shape({"model": other})


@pytest.mark.parametrize("name", ["Llama3-8B-MoE", "gpt3-175b-moe"])
def test_a_mixture_of_experts_is_no_dense_model(name: str) -> None:
    with pytest.raises(ValueError, match="no model of ours is called"):
        row_shape({"model": name})


@pytest.mark.parametrize("cell", ["fsdp=0", "fsdp:0", "distopt=0", "zero1=0"])
def test_a_switch_that_is_off_is_off(cell: str) -> None:
    assert read_row(LLAMA | {"fsdp_zero": cell}).job == read_row(LLAMA | {"fsdp_zero": "none"}).job


@pytest.mark.parametrize(
    ("framework", "notes", "stops"),
    [
        ("torchtitan FSDP2", "", 1),
        ("llm-foundry/Composer FSDP (torch1.13/2.0)", "MP mode DEFAULT", 1),
        ("llm-foundry/Composer FSDP (torch1.13/2.0)", "MP mode PURE", 0),
        ("Megatron-LM", "", 0),
    ],
)
def test_torch_recomputes_no_layer_to_its_end_and_megatron_each(framework: str, notes: str, stops: int) -> None:
    row = read_row(LLAMA | {"framework": framework, "notes": notes})
    assert row.job is not None, row.refused
    assert row.job["stops_early"] == stops


@pytest.mark.parametrize(
    ("framework", "date", "name"),
    [
        ("Megatron-Bridge/NeMo 26.04.01", "26.04.01", "megatron_bridge-26.04.01"),
        ("MLPerf Dell: NGC Pytorch 24.09, NGC HugeCTR 24.09", "MLPerf Training v4.1", "mlperf-4.1"),
        ("llm-foundry/Composer FSDP (torch1.13/2.0)", "2023", "llm_foundry-2023"),
        ("NeMo 24.03", "", "nemo-24.03"),
        ("Megatron-LM core0.14 TE2.11", "", "megatron_lm-core0.14 TE2.11"),
        ("Primus ROCm7.1", "2026-02", "primus-2026-02"),
        ("ROCm/Megatron-LM", "2026", "megatron_lm-2026"),
        ("", "", ""),
        ("Megatron-Core", "notadate", "megatron_core"),
        ("MLPerf AMD", "MLPerf Training v5.1 (2025)", "mlperf-5.1"),
    ],
)
def test_a_stack_is_a_framework_and_its_release(framework: str, date: str, name: str) -> None:
    assert stack(framework, date) == name


def test_a_row_of_bridge_has_what_its_recipe_says() -> None:
    layout = {"gpu": "GB200", "gpus": "256", "nodes": "64", "model": "qwen3-235b-a22b", "experts": "128", "topk": "8"}
    shape = {"layers": "94", "hidden": "4096", "ffn": "1536", "heads": "64", "kv_heads": "4", "vocab": "151936"}
    known = [recipe for recipe in recipes("megatron_bridge-0.3.1", "qwen3_235b_a22b") if "gb200" in recipe.hardware]
    sizes = {"tp": "tensor_model", "pp": "pipeline_model", "vp": "virtual_pipeline_model", "cp": "context"}
    sizes |= {"ep": "expert_model"}
    wanted = known[0].experiment
    cut = {
        name: str(wanted[f"layout.{own}_parallel_size"] or 1) for name, own in (sizes | {"ep": "expert_model"}).items()
    }
    work = {"mbs": str(wanted["training.micro_batch_size"]), "gbs": str(wanted["training.global_batch_size"])}
    stated = {"precision": known[0].precision.replace("_current", ""), "framework": "Megatron-Bridge/NeMo 26.02"}
    empty = {"dp": "", "params_b": "", "seq": "4096", "recompute": "", "date": "26.02"}
    row = read_row(LLAMA | layout | shape | cut | work | stated | empty)
    assert row.refused == ""
    assert row.job is not None
    assert row.job["gradient_bytes"] == 2
    assert row.job["flex_dispatcher"] in (0, 1)
    assert "recompute" not in row.missing
    assert any(note.startswith("graphs, dispatcher and gradients by the recipe qwen3") for note in row.notes)


def test_nothing_is_offloaded_in_a_pipeline() -> None:
    """Megatron-Core refuses both together, so the cell of such a row is of another run."""
    in_pipeline = read_row(LLAMA | {"offload_layers": "20"})
    assert in_pipeline.job is not None
    assert in_pipeline.job["offloaded_layers"] == 0
    assert any("offload_layers ignored" in note for note in in_pipeline.notes)
    alone = read_row(LLAMA | {"offload_layers": "20", "pp": "1", "vp": "1", "dp": "8"})
    assert alone.job is not None and alone.job["offloaded_layers"] == 20


@pytest.mark.parametrize(("release", "overlapped", "flex"), [("26.02", 1, 0), ("26.04", 0, 1)])
def test_a_release_runs_experts_as_its_own_recipe_has_it(release: str, overlapped: int, flex: int) -> None:
    """Qwen3 235B on B300 in 26.02, which overlapped the exchange of experts; GPT-OSS on B200 in 26.04 by HybridEP."""
    cells = {"gpu": "B300", "gpus": "256", "model": "qwen3-235b-a22b", "vocab": "", "pp": "8", "vp": "4", "dp": "32"}
    if release == "26.04":
        cells = {"gpu": "B200", "gpus": "64", "model": "gpt-oss-120b", "vocab": "", "pp": "1", "vp": "1", "dp": "64"}
    cells |= dict.fromkeys(("params_b", "layers", "hidden", "ffn", "heads", "kv_heads", "nodes"), "")
    cells |= {"tp": "1", "cp": "1", "ep": "8", "seq": "4096", "date": release, "framework": "Megatron-Bridge/NeMo"}
    precision = {"mbs": "1", "gbs": "8192", "precision": "mxfp8"}
    precision = precision if release == "26.02" else {"mbs": "4", "gbs": "1280", "precision": "bf16"}
    row = read_row(LLAMA | cells | precision)
    assert row.job is not None, row.refused
    assert (row.job["overlapped_experts"], row.job["flex_dispatcher"]) == (overlapped, flex)


def test_experts_of_a_release_are_in_a_graph_of_the_whole_step_where_its_configuration_says_so() -> None:
    """DeepSeek V3 on GB300 has been since 26.06 (DEEPSEEK_V3_PRETRAIN_CONFIG_GB300_FP8_MX_V2 of v0.5.0)."""
    names = ("params_b", "layers", "hidden", "ffn", "heads", "kv_heads", "nodes", "vocab", "dp")
    cells = dict.fromkeys(names, "") | {"gpu": "GB300", "gpus": "256", "model": "deepseek-v3", "precision": "mxfp8"}
    cells |= {"tp": "1", "pp": "2", "vp": "8", "cp": "1", "ep": "32", "mbs": "1", "gbs": "4096", "seq": "4096"}
    rows = [
        read_row(LLAMA | cells | {"date": date, "framework": "Megatron-Bridge/NeMo"}) for date in ("26.04", "26.06")
    ]
    jobs = jobs_of([row.job for row in rows if row.job])
    assert jobs.graphed_experts.tolist() == [0, 1], [row.refused for row in rows]
    launches = step_time(jobs, shipped()).launches
    assert launches[1] < launches[0] / 2


@pytest.mark.parametrize(
    ("stack_", "known"),
    [
        *[("megatron_bridge-26.04", False), ("megatron_bridge-26.06.01", False), ("megatron_bridge-25.09", False)],
        *[("megatron_bridge-26.08", True), ("megatron_bridge-0.5.0", False), ("megatron_bridge-0.6.0", True)],
        *[("megatron_bridge-2026-10", None), ("megatron_bridge", None), ("primus-v26.5", None)],
    ],
)
def test_a_release_is_of_the_stack_that_a_row_states_however_it_does(stack_: str, known: bool | None) -> None:
    assert is_of("0.6.0", stack_) is known


def test_a_row_follows_the_newest_recipe_that_is_no_later() -> None:
    """NVIDIA's container 26.08 has Megatron-Bridge 0.6.0, 26.04 has 0.4.0, of which 0.3.1 is the nearest before it."""
    sizes = ("tensor_model", "pipeline_model", "virtual_pipeline_model", "context", "expert_model")
    job = {f"{name}_parallel_size": 1 for name in sizes} | {"hardware": "h100", "precision": "fp8", "trained": ""}
    job |= {"micro_batch_size": 1, "global_batch_size": 128}
    stacks = ("megatron_bridge-26.04", "megatron_bridge-26.08", "megatron_bridge")
    found = [followed(("llama31_8b",), {**job, "stack": stack_}) for stack_ in stacks]
    assert [recipe and recipe.release for recipe in found] == ["0.3.1", "0.6.0", "0.3.1"]


def test_a_file_that_is_no_table_of_runs_is_refused() -> None:
    for text in ("", "a,b\n1,2\n", "gpu,gpus,model,seq\n", "gpu,gpu,gpus,model,seq,gbs\n", "\x00\x01"):
        with pytest.raises(InputError):
            read_rows(io.StringIO(text), "t.csv")


def test_every_line_is_a_row_whatever_stands_in_it() -> None:
    text = "GPU , gpus,model,seq,gbs\nH100,8,llama3-8b,8192,128,extra\n\"=cmd('x')\",8\nH100,8,llama3-8b,8192,128\n"
    header, rows, _ = read_rows(io.StringIO(text), "t.csv")
    first, second, third = rows
    assert header[0] == "GPU "
    assert first.refused == "6 cells under 5 columns"
    assert second.refused.startswith("gpu: no facts of a GPU")
    assert third.job
    assert third.texts == ("H100", "8", "llama3-8b", "8192", "128")


def test_a_line_that_no_reader_takes_is_a_row_with_that_reason() -> None:
    _, rows, _ = read_rows(
        io.StringIO(f"gpu,gpus,model,seq,gbs\nH100,{'x' * 2**21}\nH100,8,llama3-8b,8192,128\n"), "t.csv"
    )
    first, second = rows
    assert first.refused.startswith("the line cannot be read: field larger")
    assert second.job


def test_a_table_in_utf_16_is_named_so() -> None:
    text = "gpu,gpus,model,seq,gbs\n".encode("utf-16").decode("utf-8", "surrogateescape")
    with pytest.raises(InputError, match="this one is UTF-16"):
        read_rows(io.StringIO(text), "t.csv")


@pytest.mark.parametrize("size", ["4.0", "4e0", "0", "x", "-1", "1e30", "inf"])
def test_a_layout_that_is_half_stated_is_completed_or_refused_however_it_is_spelled(size: str) -> None:
    (row,) = completed([read_row(LLAMA | {"pp": size, "vp": "", "mbs": "", "dp": ""})], judged)
    assert (row.job is not None) == size.startswith("4")
    assert row.job is not None or "pp" in row.refused


@pytest.mark.parametrize("between", [",", ";", "\t"])
def test_a_table_of_a_spreadsheet_keeps_what_stands_between_its_cells(tmp_path: Path, between: str) -> None:
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("gpu,gpus,model,seq,gbs\nH100,8,llama3-8b,8192,128\n".replace(",", between))
    assert predict_table(source, target) == (1, 0)
    (row,) = csv.DictReader(target.read_text().splitlines(), delimiter=between)
    assert float(row["predicted_step_time_s"]) > 0


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(COLUMNS), st.text(max_size=20)))
def test_no_cell_raises(change: dict[str, str]) -> None:
    row = read_row(LLAMA | change)
    assert (row.job is None) == bool(row.refused)


@pytest.mark.skipif(not COLLECTED.is_file(), reason="no ../shared")
def test_the_published_rows_are_jobs_but_for_those_that_cannot_be() -> None:
    rows = table_rows(COLLECTED)
    jobs = jobs_of([row.job for row in rows if row.job])
    assert (len(rows), jobs.count) == (2329, 2229)
    for field in fields(Jobs):
        values = getattr(jobs, field.name)
        assert values.dtype.kind == "U" or field.name in MAY_BE_UNKNOWN or not any(map(isnan, values))
