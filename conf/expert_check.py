"""Experts: rules of the model and of its layout, as Megatron-Core has them. Same form as conf/layout_check.py."""

from __future__ import annotations

from collections.abc import Iterator

from conf.errors import Problem, listed
from conf.layout_check import Case, Rule, divisors, nearest

KEY = "layout.expert_model_parallel_size"


def _routing(case: Case) -> Iterator[Problem]:
    moe, layers = case.model.moe, case.model.num_layers
    if moe is None:
        return
    if not 1 <= moe.moe_router_topk <= moe.num_experts:
        what = f"a token goes to at least one and at most all {moe.num_experts} experts"
        yield Problem("model.moe.moe_router_topk", what, str(moe.moe_router_topk), f"1 to {moe.num_experts}")
    if moe.moe_router_topk == 1 and moe.moe_router_score_function == "softmax" and not moe.moe_router_pre_softmax:
        what = "a softmax over the one chosen expert is always 1 and has no gradient"
        yield Problem("model.moe.moe_router_topk", what, "1", hint="model.moe.moe_router_pre_softmax=true")
    if not 0 <= moe.moe_first_dense_layers < layers:
        what = f"{case.model.name} has {layers} layers here, and at least one must have experts"
        found = str(moe.moe_first_dense_layers)
        yield Problem("model.moe.moe_first_dense_layers", what, found, f"0 to {layers - 1}")
    if moe.num_experts % (moe.moe_router_num_groups or 1):
        what = f"{moe.num_experts} experts do not divide into groups of one size"
        valid = listed(nearest(moe.moe_router_num_groups or 1, divisors(moe.num_experts)))
        yield Problem("model.moe.moe_router_num_groups", what, str(moe.moe_router_num_groups), valid)


def _experts(case: Case) -> Iterator[Problem]:
    moe = case.model.moe
    if case.ep == 1:
        return
    if moe is None:
        yield Problem(KEY, f"{case.model.name} has no experts", str(case.ep), "1")
    elif moe.num_experts % case.ep:
        valid = listed(nearest(case.ep, divisors(moe.num_experts)))
        yield Problem(KEY, f"{moe.num_experts} experts do not divide by EP {case.ep}", str(case.ep), valid)
    if case.world_size % (case.tp * case.pp * case.ep):
        what = f"TP {case.tp} × EP {case.ep} × PP {case.pp} does not divide {case.world_size} GPUs"
        yield Problem(KEY, what, str(case.ep), listed(nearest(case.ep, divisors(case.world_size))))


def _tensor(case: Case) -> Iterator[Problem]:
    if case.model.moe is None or case.tp == 1:
        return
    key = "layout.tensor_model_parallel_size"
    if not case.layout.sequence_parallel:
        what = f"experts with TP {case.tp} need sequence parallel: without it every TP rank would route the same tokens"
        yield Problem("layout.sequence_parallel", what, "false", "true", "layout.sequence_parallel=true, or TP 1")
    if case.model.add_bias_linear:
        what = f"{case.model.name}'s experts have biases, which Megatron-Core does not split over TP"
        yield Problem(key, what, str(case.tp), "1", f"TP 1 and up to EP {case.model.moe.num_experts}")
    if case.ep > 1 and case.hardware.vendor is None:
        what = f"TP {case.tp} with EP {case.ep} gathers pieces of unequal size, which gloo on a CPU refuses"
        yield Problem(KEY, what, str(case.ep), "1", "TP or EP alone, with PP or DP; on GPUs both work")


EXPERT_RULES: tuple[Rule, ...] = (_routing, _experts, _tensor)
