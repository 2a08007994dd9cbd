"""preflight=: what vendors' tools say, what is a finding and what is noise, and a rank that is really held back."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from conf import devices, load_experiment
from conf.errors import ConfigError
from conf.machine import VERSION, Figure, Machine, write
from launchers import make_plan
from launchers.node_check import REFERENCE, held_against
from launchers.plan import Host, Plan
from launchers.rank_modules import FOLDER, rank_module
from parsers import read
from tensorprimat.launch import main as launch

TEXTS = Path(__file__).parent / "tools"
tools, judge = rank_module("node_tools"), rank_module("node_findings")


def text(name: str) -> str:
    """Return a vendor's text without the lines that say where it is from."""
    lines = (TEXTS / name).read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("#"))


def test_nvidia_smi_of_an_h100_and_its_neighbour() -> None:
    first, second = tools.nvidia_gpus(text("nvidia_query.csv"))
    assert (first["kind"], first["driver"], first["power_limit_w"]) == ("NVIDIA H100 80GB HBM3", "535.129.03", 700.0)
    assert (first["clock_limit_mhz"], first["memory_used_bytes"], first["index"]) == (1980.0, 3 * 2**20, 0)
    assert "held_back" not in first and first["uncorrected_errors"] == 0
    assert second["held_back"] == ["the hardware slows it down", "heat"]
    assert "uncorrected_errors" not in second, "[N/A] is unknown, not zero"


def test_links_of_a_dgx_a100() -> None:
    links = tools.nvidia_links(text("nvidia_topo.txt"))
    assert len(links) == 28
    assert {*links.values()} == {"NV12"}
    assert tools.nvidia_links("no such option") == {}


def test_links_of_an_h100_and_of_cards_without_any() -> None:
    assert {*tools.nvidia_links(text("nvidia_topo_h100.txt")).values()} == {"NV18"}
    links = tools.nvidia_links(text("nvidia_topo_4090.txt"))
    assert len(links) == 28 and {*links.values()} == {"SYS"}, "those of network cards are left out"


def test_rocm_smi_of_four_mi210() -> None:
    gpus, driver = tools.rocm_gpus(text("rocm_mi210.json"))
    assert driver == "5.18.13"
    assert {gpu["kind"] for gpu in gpus} == {"0x740f"}, "two names of one device"
    assert [gpu["clock_limit_mhz"] for gpu in gpus] == [1700, 1700, 1700, 1502]
    assert [gpu["performance_level"] for gpu in gpus] == ["auto", "auto", "auto", "perf_determinism"]
    assert tools.rocm_busy(text("rocm_mi210.json")) == [], "its process has no GPU"
    assert tools.rocm_busy('{"system": {"PID7": "python3, 8, 183000000000, 0, 0"}}') == ["7 python3"]
    found = judge.findings([node(0, gpus=gpus)])
    assert [one["text"] for one in found] == [
        "node 0 (n0): GPU 3 has clock limit, MHz 1502.0, most have 1700.0",
        "node 0 (n0): GPU 3 has level perf_determinism, most have auto",
    ]


def test_links_that_rocm_smi_prints() -> None:
    links = tools.rocm_links(text("rocm_topo.txt"))
    assert len(links) == 28 and {*links.values()} == {"XGMI"} and links["6-7"] == "XGMI"
    assert tools.rocm_links(text("rocm_topo_pcie.txt")) == dict.fromkeys(
        ("0-1", "0-2", "0-3", "1-2", "1-3", "2-3"), "PCIE"
    )


def test_amd_smi_of_an_mi210_and_an_mi355x() -> None:
    (older,) = tools.amd_gpus(text("amd_static_mi210.json"))
    assert (older["kind"], older["name"], older["driver"]) == ("0x740f", "AMD Instinct MI210", "6.14.0-24-generic")
    assert (older["power_limit_w"], older["clock_limit_mhz"]) == (300.0, 1700.0)
    assert "use_percent" not in older and "uncorrected_errors" not in older, "nothing said so"
    said = json.loads(text("amd_mi355x.json"))
    (gpu,) = tools.amd_gpus(json.dumps(said["static"]), "WARNING: no ring\n" + json.dumps(said["metric"]))
    assert (gpu["kind"], gpu["power_limit_w"], gpu["clock_limit_mhz"]) == ("AMD Instinct MI355X", 1400.0, 2400.0)
    assert (gpu["use_percent"], gpu["memory_used_bytes"], gpu["uncorrected_errors"]) == (0.0, 283 * 2**20, 0.0)
    assert gpu["performance_level"] == "auto", "in rocm-smi's words: nodes may have the one or the other"
    assert tools.amd_busy(json.dumps(said["process"])) == [], "an agent that watches has no memory of a GPU"
    said["process"][0]["process_list"][0]["process_info"]["memory_usage"]["vram_mem"]["value"] = 183_000_000_000
    assert tools.amd_busy(json.dumps(said["process"])) == ["42"]
    assert tools.amd_busy('[{"gpu": 0, "process_list": [{"process_info": "No running processes detected"}]}]') == []


def test_links_that_amd_smi_prints() -> None:
    said = json.loads(text("amd_topology.json"))
    assert tools.amd_links(json.dumps(said["before"])) == {"0-1": "PCIE"}
    assert tools.amd_links(json.dumps(said["since"])) == {"0-1": "XGMI"}


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "{",
        "[]",
        "[[",
        '[{"gpu": 0, "limit": [], "links": 3}]',
        '{"gpu_data": 7}',
        '{"card0": 3}',
        '{"system": []}',
        "ERROR: no driver\n\0\x1b[1m",
        "GPU0",
    ],
)
def test_texts_that_are_none(wrong: str) -> None:
    assert tools.nvidia_gpus(wrong) == [] and tools.nvidia_links(wrong) == {}
    assert tools.rocm_gpus(wrong)[0] == [] and tools.rocm_links(wrong) == {} and tools.rocm_busy(wrong) == []
    assert tools.amd_links(wrong) == {} and tools.amd_busy(wrong) == [] and len(tools.amd_gpus(wrong)) <= 1


def program(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
    (folder / name).chmod(0o755)


def asked(folder: Path, *more: str) -> Mapping[str, Any]:
    code = "import json, node_tools; print(json.dumps(node_tools.gpus_of_node()))"
    env = {"PATH": f"{folder}:/usr/bin:/bin", "PYTHONPATH": str(FOLDER), **dict(pair.split("=") for pair in more)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def test_a_node_without_tools_with_a_broken_one_and_with_one(tmp_path: Path) -> None:
    why = "none of nvidia-smi, rocm-smi and amd-smi is here"
    assert asked(tmp_path)["unknown"] == {"gpus": why, "links": why, "idle": why}
    said = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    program(tmp_path, "nvidia-smi", f'echo "{said}"; exit 9')
    assert f"exit code 9: {said}" in asked(tmp_path)["unknown"]["gpus"]
    where = TEXTS.as_posix()
    print_query = f"grep -v ^# {where}/nvidia_query.csv"
    print_links = f"grep -v ^# {where}/nvidia_topo.txt"
    program(
        tmp_path,
        "nvidia-smi",
        f'case $1 in --query-gpu=*) {print_query} ;; topo) {print_links} ;; *) echo "GPU-1, 77, python" ;; esac',
    )
    found = asked(tmp_path)
    assert (found["tool"], len(found["gpus"]), found["driver"]) == ("nvidia-smi", 2, "535.129.03")
    assert (found["busy"], found["unknown"]) == (["GPU-1, 77, python"], {})


def test_a_node_whose_rocm_smi_lists_nothing_is_read_by_amd_smi(tmp_path: Path) -> None:
    where = TEXTS.as_posix()
    program(tmp_path, "rocm-smi", "echo 'rocm-smi is deprecated'; exit 2")
    assert asked(tmp_path)["unknown"]["gpus"].startswith("rocm-smi lists no GPU: rocm-smi ended with exit code 2")
    static, topology = f"grep -v ^# {where}/amd_static_mi210.json", "echo '[]'"
    program(
        tmp_path,
        "amd-smi",
        f"case $1 in static) {static} ;; topology) {topology} ;; metric) exit 1 ;; *) echo '[]' ;; esac",
    )
    found = asked(tmp_path)
    assert (found["tool"], found["driver"], found["busy"]) == ("amd-smi", "6.14.0-24-generic", [])
    assert [gpu["kind"] for gpu in found["gpus"]] == ["0x740f"]
    assert found["unknown"] == {"idle": "amd-smi ended with exit code 1: no word"}, "metric says what is in use"


def rounds(mean: float, noise: float, generator: random.Random) -> list[float]:
    return [mean * generator.lognormvariate(0, noise) for _ in range(judge.ROUNDS)]


def node(number: int, **more: Any) -> dict[str, Any]:
    known = {"node": number, "host": f"n{number}", "gpus": [], "links": {}, "busy": [], "unknown": {}, "versions": {}}
    return {**known, "gemm_s": [[]], "reduce_s": [[]], "pairs": [], **more}


def cluster(seed: int, slow: Mapping[int, float], ranks: Mapping[tuple[int, int], float], noise: float) -> list[Any]:
    """Eight nodes of eight ranks. slow: node → how many times as long; ranks: (node, rank) → the same."""
    generator = random.Random(seed)
    nodes = []
    for number in range(8):
        own = [slow.get(number, 1.0) * ranks.get((number, rank), 1.0) for rank in range(8)]
        nodes.append(node(number, gemm_s=[rounds(one, noise, generator) for one in own]))
    return nodes


def test_noise_is_no_finding() -> None:
    """GPUs that differ by some percent, as those of one machine do, in 40 clusters of 64."""
    for seed in range(40):
        generator = random.Random(seed)
        usual = {(n, r): generator.uniform(1.0, 1.05) for n in range(8) for r in range(8)}
        assert judge.findings(cluster(seed, {}, usual, 0.01)) == []


def test_slow_nodes_and_ranks_are_named() -> None:
    for seed in range(40):
        (found,) = judge.findings(cluster(seed, {5: 1.15}, {}, 0.01))
        assert (found["kind"], found["node"]) == ("slow node", 5)
        assert found["interval"][0] < found["ratio"] < found["interval"][1] and 1.1 < found["ratio"] < 1.2
        kinds = {(one["kind"], one["node"]) for one in judge.findings(cluster(seed, {}, {(2, 6): 1.3}, 0.01))}
        assert kinds == {("slow rank", 2), ("slow node", 2)}, "a node is as slow as its slowest GPU"


def test_a_node_with_a_slow_network_is_named_by_its_neighbours() -> None:
    generator = random.Random(1)
    pairs = {(a, a + 1): rounds(2.0 if 3 in (a, a + 1) else 1.0, 0.01, generator) for a in range(7)}
    of = {n: [{"nodes": list(p), "seconds": s} for p, s in pairs.items() if n in p] for n in range(8)}
    (found,) = judge.findings([node(n, pairs=of[n]) for n in range(8)])
    assert (found["kind"], found["node"]) == ("slow link", 3)


GPU = {"index": 0, "kind": "H100", "power_limit_w": 700.0, "power_default_w": 700.0, "use_percent": 0.0}
MESH = {"0-1": "NV18", "0-2": "NV18", "0-3": "NV18", "1-2": "NV18", "1-3": "NV18", "2-3": "NV18"}


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ({"gpus": [{**GPU, "kind": "A100"}]}, "GPUs of several kinds"),
        ({"gpus": [GPU, {**GPU, "index": 1}]}, "different numbers of GPUs"),
        ({"gpus": [{**GPU, "use_percent": 97.0}]}, "GPU 0 is in use: 97 %"),
        ({"gpus": [{**GPU, "memory_used_bytes": 70 * 2**30}]}, "70.0 GiB"),
        ({"gpus": [GPU], "busy": ["GPU-1, 77, python"]}, "others compute on its GPUs: GPU-1, 77, python"),
        ({"gpus": [{**GPU, "power_limit_w": 500.0}]}, "may take 500 W, by default 700 W"),
        ({"gpus": [{**GPU, "held_back": ["heat"]}]}, "GPU 0 is held back by heat"),
        ({"gpus": [{**GPU, "uncorrected_errors": 2.0}]}, "2 uncorrected memory errors"),
        ({"gpus": [GPU], "versions": {"driver": "570.1"}}, "driver differs: node 0 (n0) 550.1, node 1 (n1) 570.1"),
        ({"gpus": [GPU], "versions": {}}, "driver differs: node 0 (n0) 550.1, node 1 (n1) None"),
        ({"gpus": [GPU], "links": {**MESH, "2-3": "SYS"}}, "GPUs are linked by NV18, but 2-3 SYS"),
    ],
)
def test_what_differs_is_a_finding(second: Mapping[str, Any], says: str) -> None:
    same = {"gpus": [GPU], "versions": {"driver": "550.1"}, "links": MESH}
    assert judge.findings([node(0, **same), node(1, **same)]) == []
    found = judge.findings([node(0, **same), node(1, **{**same, **second})])
    assert says in "\n".join(one["text"] for one in found)


PLAN = ("platform=nvidia", "framework=megatron", "model=llama31_8b", "nodes=2", "layout=data_parallel")


def test_the_plan_of_a_job_on_gpus_looks_first_and_others_where_requested() -> None:
    host = Host(python="/py", cpu_count=8)

    def of(*more: str) -> Plan:
        return make_plan(load_experiment(*PLAN, *more), host)

    assert not any("node_check" in word for argv in of().setup for word in argv)
    look = of("cluster=slurm").setup[0]
    assert look[-1].endswith("node_check.py") and "--nnodes=2" in look and "--master-port=29501" in look
    assert of("preflight=stop").setup[0][-1] == "--stop"
    assert of("cluster=slurm", "preflight=none").setup == of().setup


GPUS = "NVIDIA H100 80GB HBM3"


def machine(*, ranks: int, cores: int, product: float, accelerator: bool = True, nodes: int = 1) -> Machine:
    """Return a file with the figures that a job's nodes are held against, of so many FLOP/s a product."""
    device, facts = (GPUS, {"device_name": GPUS}) if accelerator else (devices.processor(), {})
    values = {"all_reduce_latency": (2e-5, "s"), "all_reduce_rate": (4e11, "bytes/s")}
    counts = {ranks: 1.0, ranks * nodes: 1 / nodes}  # of all nodes at a part of the rate
    own = [
        Figure(name, value * part, unit, "", {"ranks": count}, (0.9 * value * part, 1.1 * value * part))
        for name, (value, unit) in values.items()
        for count, part in counts.items()
    ]
    of: dict[str, int | str] = {"ranks": ranks, "precision": "bf16" if accelerator else "fp32"}
    own.append(Figure("gemm_probed", product, "FLOP/s", "", of, (0.99 * product, 1.01 * product)))
    day = "2026-11-29T00:00:00+00:00"
    return Machine(VERSION, day, "a", device, accelerator, ranks * nodes, cores, facts, tuple(own), nodes=nodes)


def test_a_job_on_gpus_takes_a_machines_figures_to_its_nodes() -> None:
    known, host = machine(ranks=8, cores=128, product=6.5e14), Host(python="/py", cpu_count=8)
    held = held_against(load_experiment(*PLAN, "cluster=slurm"), known)
    reference = json.loads(make_plan(held, host).env[REFERENCE])
    assert GPUS in reference["devices"] and reference["all_reduce"] is None
    assert reference["product_flops_per_s"] == pytest.approx(0.99 * 6.5e14)
    expected = judge.expected_s(reference, 4096, 2**28, 8, 16)
    assert expected["brief_s"] == pytest.approx(2 * 4096**3 / (0.99 * 6.5e14))
    assert expected["reduce_s"] == pytest.approx(2.2e-5 + 2 * 7 / 8 * 2**28 / 3.6e11)
    assert "all_s" not in expected
    assert REFERENCE not in make_plan(load_experiment(*PLAN, "cluster=slurm"), host).env


def test_a_file_of_as_many_nodes_says_what_they_do_together() -> None:
    known, host = machine(ranks=8, cores=128, product=6.5e14, nodes=2), Host(python="/py", cpu_count=8)
    held = held_against(load_experiment(*PLAN, "cluster=slurm"), known)
    reference = json.loads(make_plan(held, host).env[REFERENCE])
    expected = judge.expected_s(reference, 4096, 2**28, 8, 16)
    assert expected["all_s"] == pytest.approx(1.1e-5 + 2 * 15 / 16 * 2**28 / 1.8e11)
    assert expected["reduce_s"] == pytest.approx(2.2e-5 + 2 * 7 / 8 * 2**28 / 3.6e11)
    assert "all_s" not in judge.expected_s(reference, 4096, 2**28, 8, 32), "a bundle that others start on four nodes"


@pytest.mark.parametrize(
    ("words", "known", "says"),
    [
        ("gpus_per_node=2", {"ranks": 2, "cores": 4}, "2 ranks on 4 cores"),  # two threads a rank, preflight= has one
        ("gpus_per_node=4", {"ranks": 4, "cores": 2}, "4 ranks on 2 cores"),  # that wait for a core
        ("gpus_per_node=2 rehearse=train", {"ranks": 2, "cores": 2}, "a rehearsal has no speed"),
    ],
)
def test_a_file_of_a_cpu_that_no_rank_is_like_is_refused(words: str, known: Mapping[str, int], says: str) -> None:
    e = load_experiment("platform=cpu", "model=llama_tiny", "preflight=note", *words.split())
    with pytest.raises(ConfigError, match=says):
        held_against(e, machine(product=1e11, accelerator=False, **known))


def test_the_product_is_the_one_that_measure_has() -> None:
    from measure.cases import PROBED

    sizes = {kind: size for kind, (size, _) in rank_module("node_check").GEMM.items()}
    assert sizes == {"cuda": PROBED[True], "cpu": PROBED[False]}


@pytest.mark.parametrize(
    ("times", "on_cpu", "kinds"),
    [
        ({"brief_s": (1.03, 1.03), "reduce_s": (1.3, 1.3), "all_s": (1.0, 1.0)}, False, []),
        ({"brief_s": (1.0, 1.07), "reduce_s": (1.0, 1.0), "all_s": (1.0, 1.0)}, False, []),  # one rank of its node
        ({"brief_s": (1.15, 1.15), "reduce_s": (1.3, 1.3), "all_s": (1.0, 1.0)}, False, ["products"]),
        ({"brief_s": (1.0, 1.0), "reduce_s": (2.0, 2.0), "all_s": (1.0, 1.0)}, False, ["its own all-reduce"]),
        ({"brief_s": (1.0, 1.0), "reduce_s": (1.0, 1.0), "all_s": (2.0, 2.0)}, False, ["all-reduces of all"]),
        ({"brief_s": (1.15, 1.15), "reduce_s": (2.0, 2.0), "all_s": (2.0, 2.0)}, True, []),
        ({"brief_s": (1.4, 1.4), "reduce_s": (2.0, 2.0), "all_s": (2.0, 2.0)}, True, ["products"]),
    ],
)
def test_a_node_alone_is_held_against_a_file(
    times: Mapping[str, tuple[float, float]], on_cpu: bool, kinds: list[str]
) -> None:
    """times: of both ranks, by the file's."""
    generator = random.Random(3)
    timed = {name: [rounds(factor, 0.01, generator) for factor in ranks] for name, ranks in times.items()}
    own = node(0, **timed, device="AMD Instinct MI300X OAM", on_cpu=on_cpu)
    names = ["AMD Instinct MI300X", "AMD Instinct MI300X OAM"]
    reference = {"date": "2026-11-29T00:00:00", "devices": names, "expected_s": dict.fromkeys(times, 1.0)}
    found = judge.findings([own], reference)
    assert [one["text"].rpartition(" for ")[2] for one in found] == kinds
    assert all("as long as by machine= (of 2026-11-29)" in one["text"] for one in found)
    (other,) = judge.findings([{**own, "device": "A100"}], reference)
    assert other["text"] == "node 0 (n0): has A100, machine= is a file of AMD Instinct MI300X"


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize(("product", "code"), [(1e14, 1), (1e9, 0)])
def test_a_bundle_holds_its_node_against_a_file(product: float, code: int, tmp_path: Path) -> None:
    """By a product for real: no core has 100 TFLOP/s, and any has one GFLOP/s."""
    write(tmp_path / "m.yaml", machine(ranks=2, cores=2, product=product, accelerator=False))
    words = ("platform=cpu", "framework=megatron", "model=llama_tiny", "gpus_per_node=2", "preflight=stop")
    assert launch([*words, f"bundle={tmp_path / 'left'}", f"machine={tmp_path / 'm.yaml'}"]) == 0
    env = {**os.environ, "PREFLIGHT": "only" if code == 0 else "", "PYTHON": sys.executable}
    run = ["bash", str(tmp_path / "left" / "run.sh")]
    done = subprocess.run(run, env=env, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    assert ("as long as by machine= (of 2026-11-29) for products" in said) == bool(code), said


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.long
def test_a_launch_with_preflight_has_the_nodes_in_its_record(tmp_path: Path) -> None:
    tiny = ("platform=cpu", "framework=megatron", "model=llama_tiny", "gpus_per_node=2", "training.train_iters=2")
    assert launch([*tiny, "optimizer.lr_warmup_iters=1", "preflight=note", f"runs_dir={tmp_path}", "name=a"]) == 0
    (path,) = (path for path in (tmp_path / "a").iterdir() if path.is_dir())
    record = read(path)
    (looked,) = record.environment["preflight"]["nodes"]
    assert looked["rates"]["gemm_tflops"] > 0 and looked["rates"]["reduce_gb_s"] > 0
    assert looked["unknown"]["gpus"] == "this run is on the CPU"
    texts = [f"preflight: {one['text']}" for one in record.environment["preflight"]["findings"]]
    assert [note for note in record.notes if note.startswith("preflight")] == texts
    assert (record.status, len(record.steps)) == ("completed", 2)
