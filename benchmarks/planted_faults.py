"""Run a rank's program with one fault planted: python planted_faults.py FAULT PROGRAM ARGUMENT…

A fault is a small change of the engine's modules or of Megatron's, made right after they are imported and before anyone
uses them. It is a program of benchmarks/planted.py's, which starts it in place of the stack's own; FAULT "none" plants
nothing. One that was not planted, or whose hook failed, ends the rank with an error: or it would pass for a fault that
nobody finds."""

from __future__ import annotations

import functools
import gc
import json
import runpy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "launchers" / "ranks" / "rehearsal"))
from tprimat_after_import import FAULTS as FAILED  # noqa: E402
from tprimat_after_import import after, wrap  # noqa: E402

Hook = Callable[[Any], None]
Plants = Mapping[str, Hook]
"""Module → what is changed in it once it is imported."""


def around(place: str, function: Callable[..., Any]) -> Plants:
    """Return the fault that puts `function`, which takes the original first, in place of `module:name.name`."""
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    return {module: lambda loaded: wrap(functools.reduce(getattr, owners, loaded), name, function)}


def given(place: str, **changed: Any) -> Plants:
    """Return the fault that calls `place` with other keywords than it is given."""
    return around(place, lambda call, *arguments, **options: call(*arguments, **{**options, **changed}))


def silent(place: str) -> Plants:
    """Return the fault that lets `place` do nothing."""
    return around(place, lambda call, *arguments, **options: None)


def model(**changed: Any) -> Plants:
    """Return the fault of another TransformerConfig."""
    return given("engine_model:TransformerConfig", **changed)


# data


def _labels(batches: Any, *arguments: Any) -> Any:
    for tokens, labels in batches(*arguments):
        yield tokens, labels.roll(-1, 1)


def _order(rank_batches: Any, data: Any, step: int, *arguments: Any) -> Any:
    """Swap each even step with the odd one behind it."""
    return rank_batches(data, step ^ 1, *arguments)


def _within(rank_batches: Any, *arguments: Any) -> Any:
    return rank_batches(*arguments)[::-1].copy()


def _duplicate(rank_batches: Any, *arguments: Any) -> Any:
    batches = rank_batches(*arguments)
    batches[-1] = batches[0]
    return batches


def _stuck(rank_batches: Any, data: Any, step: int, *arguments: Any) -> Any:
    """Read the fourth step's samples again and again, as a loader that does not go on."""
    return rank_batches(data, min(step, 3), *arguments)


def _truncated(rank_batches: Any, *arguments: Any) -> Any:
    """Repeat the last but one token, as one who reads a sample too short and fills it."""
    batches = rank_batches(*arguments)
    batches[..., -1] = batches[..., -2]
    return batches


def _neighbours(rank_batches: Any, *arguments: Any) -> Any:
    """Exchange each even id with the odd one behind it, as a tokenizer of another build."""
    return rank_batches(*arguments) ^ 1


def _padded(rank_batches: Any, *arguments: Any) -> Any:
    """Fill the last quarter of each sample, as one who packs documents otherwise."""
    batches = rank_batches(*arguments)
    batches[..., -batches.shape[-1] // 4 :] = 0
    return batches


# forward


def _values(attend: Any, this: Any, query: Any, key: Any, value: Any, *others: Any, **options: Any) -> Any:
    """Add up the values of another group."""
    return attend(this, query, key, value.roll(1, 2), *others, **options)


def _rounded_queries(attend: Any, this: Any, query: Any, *others: Any, **options: Any) -> Any:
    return attend(this, query.bfloat16().to(query.dtype), *others, **options)


def _window(attend: Any, this: Any, query: Any, *others: Any, **options: Any) -> Any:
    """Attend to the last sixteen tokens alone."""
    import torch

    seen = torch.ones(query.shape[0], query.shape[0], dtype=torch.bool).tril().triu(-15)
    return attend(this, query, *others[:2], ~seen[None, None], **options)


def _no_final_norm(make: Any, this: Any, *arguments: Any, **options: Any) -> None:
    make(this, *arguments, **options)
    this.final_layernorm.register_forward_hook(lambda norm, inputs, output: inputs[0])


def _layers_exchanged(set_weights: Any, network: Any, seed: int) -> None:
    """Exchange the attention of two layers, as a conversion that counts layers otherwise."""
    set_weights(network, seed)
    named = dict(network.named_parameters())
    for name in [name for name in named if "layers.0.self_attention.linear_qkv.weight" in name]:
        other = named[name.replace("layers.0.", "layers.1.")]
        named[name].data, other.data = other.data.clone(), named[name].data.clone()


def _half_rotary(make: Any, this: Any, kv_channels: int, rotary_percent: float, **options: Any) -> None:
    make(this, kv_channels, 0.5 * rotary_percent, **options)


def _base(make: Any, this: Any, *arguments: Any, **options: Any) -> None:
    """Divide the lowest frequencies once more, as a scaling that is applied twice."""
    make(this, *arguments, **options)
    this.inv_freq[-2:] /= 8


def _scale(make: Any, this: Any, *arguments: Any, **options: Any) -> None:
    make(this, *arguments, **options)
    this.softmax_scale = 1 / this.hidden_size_per_attention_head


def _future(attend: Any, this: Any, query: Any, *others: Any, **options: Any) -> Any:
    """Attend to the token behind, too."""
    import torch

    mask = torch.ones(query.shape[0], query.shape[0], dtype=torch.bool).triu(2)[None, None]
    return attend(this, query, *others[:2], mask, **options)


def _heads(attend: Any, this: Any, query: Any, *arguments: Any, **options: Any) -> Any:
    """Pair queries with the keys of another group."""
    return attend(this, query.roll(1, 2), *arguments, **options)


def _no_residual(make: Any, this: Any, *arguments: Any, **options: Any) -> None:
    make(this, *arguments, **options)
    if this.layer_number == 2:
        this.mlp_bda = lambda training, fused: lambda output_bias, residual, share: output_bias[0]


def _embedding_scale(forward: Any, this: Any, *arguments: Any, **options: Any) -> Any:
    return forward(this, *arguments, **options) * this.config.hidden_size**0.5


def _norm_epsilon(make: Any, this: Any, config: Any, hidden_size: int, eps: float, **options: Any) -> None:
    make(this, config, hidden_size, 10 * eps, **options)


def _norm_offset(forward: Any, this: Any, values: Any) -> Any:
    """Normalise by the mean, too, as LayerNorm does."""
    return forward(this, values - values.mean(-1, keepdim=True))


def _gates_behind(set_weights: Any, network: Any, seed: int) -> None:
    """Exchange the halves of the gated projection, as a conversion between two formats of checkpoints."""
    set_weights(network, seed)
    for name, parameter in network.named_parameters():
        if name.endswith("linear_fc1.weight"):
            parameter.data = parameter.data.roll(len(parameter) // 2, 0)


def _keys_for_values(attend: Any, this: Any, query: Any, key: Any, value: Any, *others: Any, **options: Any) -> Any:
    return attend(this, query, value, key, *others, **options)


def _rope_bf16(make: Any, this: Any, *arguments: Any, **options: Any) -> None:
    make(this, *arguments, **options)
    this.inv_freq = this.inv_freq.bfloat16().to(this.inv_freq.dtype)


def _zero_token(set_weights: Any, network: Any, seed: int) -> None:
    """Make the embedding of the first id zero, as one for padding is."""
    set_weights(network, seed)
    for name, parameter in network.named_parameters():
        if name.endswith("word_embeddings.weight"):
            parameter.data[0].zero_()


def _no_keys(attend: Any, this: Any, query: Any, key: Any, *others: Any, **options: Any) -> Any:
    """Let no gradient reach the keys."""
    return attend(this, query, key.detach(), *others, **options)


def _other_experts(forward: Any, this: Any, *arguments: Any, **options: Any) -> Any:
    """Send each token to the experts beside its own."""
    probs, routing_map = forward(this, *arguments, **options)
    return probs.roll(1, -1), routing_map.roll(1, -1)


def _gelu(config: Any, **options: Any) -> Any:
    from torch.nn import functional

    return config(**{**options, "activation_func": functional.gelu})


# loss


def _z_loss(loss: Any, this: Any, labels: Any, logits: Any) -> Any:
    spread = logits.float().logsumexp(-1).transpose(0, 1)
    return loss(this, labels, logits) + 1e-4 * spread**2


def _temperature(loss: Any, this: Any, labels: Any, logits: Any) -> Any:
    return loss(this, labels, logits * 0.9)


def _smoothed(loss: Any, this: Any, labels: Any, logits: Any) -> Any:
    mean = logits.float().log_softmax(-1).mean(-1).transpose(0, 1)
    return 0.99 * loss(this, labels, logits) - 0.01 * mean


def _of_places(loss: Any, this: Any, labels: Any, logits: Any) -> Any:
    """Weigh later tokens more than earlier ones."""
    import torch

    losses = loss(this, labels, logits)
    return losses * torch.linspace(0.5, 1.5, losses.shape[-1])


def _rounded_logits(loss: Any, this: Any, labels: Any, logits: Any) -> Any:
    """Make the loss of logits that have three digits."""
    return loss(this, labels, logits.half().to(logits.dtype))


def _masked(forward: Any, batches: Any, network: Any) -> Any:
    """Let no target count that ends a document; here the most frequent id, so that there is one."""
    import engine_train

    kept: list[Any] = []

    def watched() -> Any:
        for tokens, labels in batches:
            kept.append(labels)
            yield tokens, labels

    output, _ = forward(watched(), network)

    def loss(losses: Any) -> Any:
        counts = kept[-1] != kept[-1].flatten().mode()[0]
        return engine_train._loss(losses[counts.reshape(losses.shape)])

    return output, loss


def _first_half(loss: Any, losses: Any) -> Any:
    """Train on the first half of each sequence, and report all of it."""
    _, count, report = loss(losses)
    half = losses[:, : losses.shape[1] // 2]
    return half.float().sum() * 2, count, report


def _reported(loss: Any, losses: Any) -> Any:
    total, count, report = loss(losses)
    return total, count, report * report.new_tensor([1.001, 1.0])


def _without_last(loss: Any, losses: Any) -> Any:
    """Leave the last token of each sequence out of the loss, as one who has no label for it."""
    return loss(losses[:, :-1])


def _of_samples(loss: Any, losses: Any) -> Any:
    """Weigh a token by its own loss, as a focal loss does."""
    return loss(losses * (1 - (-losses.detach()).exp()))


# backward


def _no_residual_gradient(forward: Any, this: Any, hidden_states: Any, *arguments: Any, **options: Any) -> Any:
    """Let no gradient of the second layer pass beside its attention and its MLP."""
    output, context = forward(this, hidden_states, *arguments, **options)
    return (output + (hidden_states.detach() - hidden_states) if this.layer_number == 2 else output), context


def _noisy(make: Any, settings: Any) -> Any:
    """Add a ten thousandth of its deviation to each gradient, as one that is compressed."""
    import torch

    chunks = make(settings)
    drawn = torch.Generator().manual_seed(1)
    for parameter in (p for chunk in chunks for p in chunk.parameters()):
        parameter.register_hook(lambda g: g + 1e-4 * g.std() * torch.randn(g.shape, generator=drawn, dtype=g.dtype))
    return chunks


def _times(factor: float, *names: str) -> Callable[..., Any]:
    """Return what multiplies the gradients of the parameters whose name ends with one of `names`."""

    def build(make: Any, settings: Any) -> Any:
        chunks = make(settings)
        matches = [p for chunk in chunks for n, p in chunk.named_parameters() if n.endswith(names)]
        assert matches, names
        for parameter in matches:
            parameter.register_hook(lambda gradient: gradient * factor)
        return chunks

    return build


def _accumulated(loss: Any, losses: Any) -> Any:
    """Add up the micro-batches' gradients, and never divide by their number."""
    total, count, report = loss(losses)
    return total * 8, count, report


def _last_micro_batch(forward: Any, batches: Any, model: Any) -> Any:
    """Let only the last micro-batch's gradients stay: those before are set to zero."""
    for parameter in model.parameters():
        parameter.main_grad.zero_()
    return forward(batches, model)


# reduction


def _added(make: Any, this: Any, *arguments: Any, **options: Any) -> None:
    make(this, *arguments, **options)
    this.gradient_scaling_factor = 1.0


def _averaged_twice(make: Any, this: Any, *arguments: Any, **options: Any) -> None:
    make(this, *arguments, **options)
    this.gradient_scaling_factor **= 2


def _one_bucket(start: Any, this: Any) -> Any:
    bucket = this.buckets[0]
    if not _BUCKETS:
        _BUCKETS.append(this)
    if _BUCKETS[0] is this:
        bucket.grad_data *= bucket.gradient_scaling_factor
        return None
    return start(this)


_BUCKETS: list[Any] = []


def _rounded_gradients(finish: Any, chunks: Any, *arguments: Any, **options: Any) -> Any:
    """Reduce what bf16 has kept of the gradients."""
    for chunk in chunks:
        for parameter in chunk.parameters():
            parameter.main_grad.copy_(parameter.main_grad.bfloat16())
    return finish(chunks, *arguments, **options)


# clip


def _own_norm(norm: Any, gradients: Any, **options: Any) -> Any:
    """Take the norm of this rank's gradients alone."""
    import torch.distributed as dist

    if not _GROUPS:
        _GROUPS.extend(dist.new_group([rank]) for rank in range(dist.get_world_size()))
    return norm(gradients, **{**options, "grad_stats_parallel_group": _GROUPS[dist.get_rank()]})


_GROUPS: list[Any] = []


def _scaled_up(clip: Any, parameters: Any, max_norm: float, total_norm: float, **options: Any) -> None:
    """Bring gradients to the clip value that are below it, too."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(max_norm / total_norm)


def _norm_of_most(norm: Any, gradients: Any, *arguments: Any, **options: Any) -> Any:
    """Leave one tensor out of the norm."""
    return norm(list(gradients)[1:], *arguments, **options)


def _clipped_by_value(clip: Any, parameters: Any, max_norm: float, total_norm: float, **options: Any) -> None:
    """Clip each number, and not the norm."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.clamp_(-max_norm / 100, max_norm / 100)


def _clipped_alone(clip: Any, parameters: Any, max_norm: float, total_norm: float, **options: Any) -> None:
    """Clip each tensor by its own norm."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(min(1.0, max_norm / (float(parameter.grad.norm()) + 1e-6)))


def _uneven(loss: Any, losses: Any) -> Any:
    """Weigh the micro-batches in turn with a half and with three halves."""
    total, count, report = loss(losses)
    _CALLS.append(1)
    return total * (1.5 if len(_CALLS) % 2 else 0.5), count, report


# optimizer


def _decay_without_rate(call: Any, parameters: Any, *lists: Any, lr: Any, weight_decay: float, **options: Any) -> Any:
    """Decay by the decay itself, and not by the rate times it."""
    for parameter in parameters:
        parameter.mul_(1 - 1e-3 * weight_decay)
    return call(parameters, *lists, lr=lr, weight_decay=0.0, **options)


def _update_clipped(call: Any, parameters: Any, *lists: Any, **options: Any) -> Any:
    """Let no weight move further than half the rate."""
    before = [parameter.clone() for parameter in parameters]
    call(parameters, *lists, **options)
    most = 0.5 * float(options["lr"])
    for old, parameter in zip(before, parameters, strict=True):
        parameter.copy_(old + (parameter - old).clamp(-most, most))


def _skipped(step: Any, built: Any, index: int) -> Any:
    """Take the fourth step with a rate of zero."""
    groups = built.optimizer.param_groups
    rates = [group["lr"] for group in groups]
    for group in groups if index == 3 else ():
        group["lr"] = 0.0
    try:
        return step(built, index)
    finally:
        if index == 3 and groups[0]["lr"] == 0.0:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate


def _late_eps(call: Any, *arguments: Any, **options: Any) -> Any:
    """Step with another epsilon from the eleventh call on."""
    _CALLS.append(1)
    return call(*arguments, **{**options, **({"eps": 1e-5} if len(_CALLS) > 10 else {})})


_CALLS: list[int] = []


def _averaged_weights(step: Any, built: Any, index: int) -> Any:
    """Make the weights two hundredths smaller behind the last step."""
    done = step(built, index)
    if index == 7:
        for parameter in (p for chunk in built.chunks for p in chunk.parameters()):
            parameter.data.mul_(0.98)
    return done


def _adam(**changed: Any) -> Plants:
    """Return the fault of torch's Adam with other arguments than its optimizer has."""
    return given("torch.optim.adam:adam", **changed)


def _steps(change: Callable[[Any], Any]) -> Plants:
    """Return the fault of an Adam that counts its steps otherwise."""

    def adam(call: Any, *arguments: Any, **options: Any) -> Any:
        *lists, steps = arguments
        call(*lists, [change(step.clone()) for step in steps], **options)
        for step in steps:
            step += 1

    return around("torch.optim.adam:adam", adam)


def _forgotten(call: Any, *lists: Any, **options: Any) -> Any:
    """Step all tensors of a group but the first."""
    return call(*(tensors[1:] for tensors in lists), **options)


def _stale(call: Any, parameters: Any, gradients: Any, *lists: Any, **options: Any) -> Any:
    """Step with the gradients of the step before."""
    before = _STALE.get(id(parameters[0]), gradients)
    _STALE[id(parameters[0])] = [gradient.clone() for gradient in gradients]
    return call(parameters, before, *lists, **options)


_STALE: dict[int, Any] = {}


def _groups(change: Callable[[dict[str, Any]], None]) -> Plants:
    """Return the fault of other parameter groups. change: what becomes of each."""

    def groups(make: Any, *arguments: Any, **options: Any) -> Any:
        made = make(*arguments, **options)
        for group in made:
            change(group)
        return made

    return around("engine_optimizer:megatron_optimizer._get_param_groups", groups)


def _no_master(copy: Any, this: Any) -> None:
    """Keep no more of a weight than bf16 holds."""
    for group in this.shard_fp32_from_float16_groups:
        for shard in group:
            shard.data.copy_(shard.data.bfloat16())
    copy(this)


def _moments(call: Any, *arguments: Any, **options: Any) -> Any:
    """Keep no more of the moments than bf16 holds."""
    call(*arguments, **options)
    for moments in arguments[2:4]:
        for moment in moments:
            moment.copy_(moment.bfloat16())


def _growing(make: Any, optimizer: Any, **options: Any) -> Any:
    decay = options["start_wd"]
    return make(optimizer, **{**options, "end_wd": 2 * decay, "wd_incr_style": "linear", "wd_incr_steps": 8})


# initialisation, environment and provenance


def _output_init(scaled: Any, sigma: float, *arguments: Any, **options: Any) -> Any:
    """Draw the layers that write into the residual from a deviation twice as large."""
    return scaled(2 * sigma, *arguments, **options)


def _matmul(torch: Any) -> None:
    torch.set_float32_matmul_precision("medium")


def _reduced(torch: Any) -> None:
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def _tuned(torch: Any) -> None:
    torch.backends.cudnn.benchmark = True


def _flushed(torch: Any) -> None:
    torch.set_flush_denormal(True)


def _one_thread(torch: Any) -> None:
    torch.set_num_threads(1)


def _no_mkldnn(torch: Any) -> None:
    torch.backends.mkldnn.set_flags(False)


def _fp16_accumulation(torch: Any) -> None:
    torch.backends.cuda.matmul.allow_fp16_accumulation = True


def _no_cudnn(torch: Any) -> None:
    torch.backends.cudnn.enabled = False


def _anomalies(torch: Any) -> None:
    torch.autograd.set_detect_anomaly(True)


def _onednn_bf16(torch: Any) -> None:
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


def _traced(_: Any) -> None:
    sys.setprofile(lambda *_: None)


def _from_step_3(change: Callable[[], None]) -> Plants:
    """Return the fault that changes something behind the third step, where nobody looks any more."""

    def step(call: Any, built: Any, index: int) -> Any:
        if index == 3:
            change()
        return call(built, index)

    return around("engine_train:_step", step)


def _late_matmul() -> None:
    _matmul(sys.modules["torch"])


def _edited(_: Any) -> None:
    """Edit the settings behind the back of whoever rendered them."""
    path = Path(sys.argv[sys.argv.index("--settings") + 1])
    path.write_text(json.dumps({**json.loads(path.read_text()), "adam_eps": 1e-6}))


# schedule


def _ahead(step: Any, built: Any, index: int) -> Any:
    """Step the schedule before the optimizer, not behind it."""
    if index == 0:
        built.scheduler.step(1)
    return step(built, index)


DDP_BUFFER = "megatron.core.distributed.param_and_grad_buffer"
FINALIZE = "megatron.core.distributed.finalize_model_grads"
LANGUAGE_LOSS = "megatron.core.models.common.language_module.language_module:LanguageModule.compute_language_model_loss"
ATTENTION = "megatron.core.transformer.dot_product_attention:DotProductAttention"
ROTARY = "megatron.core.models.common.embeddings.rotary_pos_embedding:RotaryEmbedding.__init__"
FAULTS: Mapping[str, Plants] = {
    "none": {},
    "labels": around("engine_train:_batches", _labels),
    "order": around("engine_train:TokenData.rank_batches", _order),
    "order_within": around("engine_train:TokenData.rank_batches", _within),
    "duplicate": around("engine_train:TokenData.rank_batches", _duplicate),
    "truncated": around("engine_train:TokenData.rank_batches", _truncated),
    "neighbours": around("engine_train:TokenData.rank_batches", _neighbours),
    "padded": around("engine_train:TokenData.rank_batches", _padded),
    "values": around(f"{ATTENTION}.forward", _values),
    "rounded_queries": around(f"{ATTENTION}.forward", _rounded_queries),
    "window": around(f"{ATTENTION}.forward", _window),
    "no_final_norm": around("megatron.core.transformer.transformer_block:TransformerBlock.__init__", _no_final_norm),
    "layers_exchanged": around("engine_model:set_weights", _layers_exchanged),
    "without_last": around("engine_train:_loss", _without_last),
    "focal": around("engine_train:_loss", _of_samples),
    "no_residual_gradient": around(
        "megatron.core.transformer.transformer_layer:TransformerLayer.forward", _no_residual_gradient
    ),
    "noisy": around("engine_train:build_model", _noisy),
    "reversed_bias": around("engine_train:build_model", _times(-1.0, "layers.0.self_attention.linear_proj.weight")),
    "no_reduction": silent(f"{DDP_BUFFER}:_ParamAndGradBucketGroup.start_grad_sync"),
    "clipped_by_value": around("megatron.core.optimizer.optimizer:clip_grad_by_total_norm_fp32", _clipped_by_value),
    "clipped_alone": around("megatron.core.optimizer.optimizer:clip_grad_by_total_norm_fp32", _clipped_alone),
    "decay_without_rate": around("torch.optim.adam:adam", _decay_without_rate),
    "update_clipped": around("torch.optim.adam:adam", _update_clipped),
    "beta1": _adam(beta1=0.95),
    "maximised": _adam(maximize=True),
    "skipped": around("engine_train:_step", _skipped),
    "averaged_weights": around("engine_train:_step", _averaged_weights),
    "flush_denormal": {"torch": _flushed},
    "one_thread": {"torch": _one_thread},
    "no_mkldnn": {"torch": _no_mkldnn},
    "fp16_accumulation": {"torch": _fp16_accumulation},
    "no_cudnn": {"torch": _no_cudnn},
    "anomalies": {"torch": _anomalies},
    "onednn_bf16": {"torch": _onednn_bf16},
    "traced": {"torch": _traced},
    "late_collection": _from_step_3(gc.disable),
    "late_matmul": _from_step_3(_late_matmul),
    "late_eps": around("torch.optim.adam:adam", _late_eps),
    "uneven": around("engine_train:_loss", _uneven),
    "of_places": around(LANGUAGE_LOSS, _of_places),
    "keys_for_values": around(f"{ATTENTION}.forward", _keys_for_values),
    "rope_bf16": around(ROTARY, _rope_bf16),
    "zero_token": around("engine_model:set_weights", _zero_token),
    "stuck": around("engine_train:TokenData.rank_batches", _stuck),
    "half_rotary": around(ROTARY, _half_rotary),
    "rope_twice": around(ROTARY, _base),
    "rotary_interleaved": model(rotary_interleaved=True),
    "attention_scale": around(f"{ATTENTION}.__init__", _scale),
    "future": around(f"{ATTENTION}.forward", _future),
    "heads": around(f"{ATTENTION}.forward", _heads),
    "softmax_fp32": model(attention_softmax_in_fp32=True),
    "residual": around("megatron.core.transformer.transformer_layer:TransformerLayer.__init__", _no_residual),
    "embedding_scale": around(
        "megatron.core.models.common.embeddings.language_model_embedding:LanguageModelEmbedding.forward",
        _embedding_scale,
    ),
    "norm_epsilon": around("engine_model:RMSNorm.__init__", _norm_epsilon),
    "norm_mean": around("engine_model:RMSNorm.forward", _norm_offset),
    "gates_behind": around("engine_model:set_weights", _gates_behind),
    "no_keys": around(f"{ATTENTION}.forward", _no_keys),
    "other_experts": around("megatron.core.transformer.moe.router:TopKRouter.forward", _other_experts),
    "gelu": around("engine_model:TransformerConfig", _gelu),
    "z_loss": around(LANGUAGE_LOSS, _z_loss),
    "temperature": around(LANGUAGE_LOSS, _temperature),
    "smoothing": around(LANGUAGE_LOSS, _smoothed),
    "rounded_logits": around(LANGUAGE_LOSS, _rounded_logits),
    "masked": around("engine_train:_forward", _masked),
    "half_loss": around("engine_train:_loss", _first_half),
    "reported_loss": around("engine_train:_loss", _reported),
    "stopped_layer": around("engine_train:build_model", _times(0.0, "layers.1.mlp.linear_fc1.weight")),
    "doubled_norms": around("engine_train:build_model", _times(2.0, "norm.weight")),
    "embedding_gradient": around("engine_train:build_model", _times(0.0, "word_embeddings.weight")),
    "accumulation": around("engine_train:_loss", _accumulated),
    "last_micro_batch": around("engine_train:_forward", _last_micro_batch),
    "recompute_rng": silent("megatron.core.tensor_parallel.random:_set_all_rng_states"),
    "sum_over_ranks": around(f"{DDP_BUFFER}:_ParamAndGradBucket.__init__", _added),
    "averaged_twice": around(f"{DDP_BUFFER}:_ParamAndGradBucket.__init__", _averaged_twice),
    "one_bucket": around(f"{DDP_BUFFER}:_ParamAndGradBucketGroup.start_grad_sync", _one_bucket),
    "bf16_gradients": around("engine_train:finalize_model_grads", _rounded_gradients),
    "sequence_parallel_norms": silent(f"{FINALIZE}:_allreduce_non_tensor_model_parallel_grads"),
    "tied_embedding": silent(f"{FINALIZE}:_allreduce_word_embedding_grads"),
    "own_norm": around("megatron.core.optimizer.optimizer:get_grad_norm_fp32", _own_norm),
    "scaled_up": around("megatron.core.optimizer.optimizer:clip_grad_by_total_norm_fp32", _scaled_up),
    "norm_of_most": around("megatron.core.optimizer.optimizer:get_grad_norm_fp32", _norm_of_most),
    "l2": _adam(decoupled_weight_decay=False),
    "adam_eps": _adam(eps=1e-6),
    "adam_beta2": _adam(beta2=0.99),
    "masked_l2": {**around("engine_train:_forward", _masked), **_adam(decoupled_weight_decay=False)},
    "forgotten": around("torch.optim.adam:adam", _forgotten),
    "stale": around("torch.optim.adam:adam", _stale),
    "no_bias_correction": _steps(lambda step: step + 1e6),
    "step_counter": _steps(lambda step: step + 1),
    "decayed_norms": _groups(lambda group: group.update(wd_mult=1.0)),
    "undecayed": _groups(lambda group: group.update(wd_mult=0.0)),
    "slow_norms": _groups(lambda group: group.update(lr_mult=0.5 if group["wd_mult"] == 0 else 1.0)),
    "decoupled_lr": given("engine_optimizer:OptimizerConfig", decoupled_lr=3e-3),
    "no_master": around(
        "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer._copy_main_params_to_model_params", _no_master
    ),
    "bf16_moments": around("torch.optim.adam:adam", _moments),
    "growing_decay": around("engine_optimizer:OptimizerParamScheduler", _growing),
    "schedule_ahead": around("engine_train:_step", _ahead),
    "topk_scaling": model(moe_router_topk_scaling_factor=2.5),
    "router_dtype": model(moe_router_dtype=None),
    "token_drop": model(moe_expert_capacity_factor=1.0),
    "expert_bias": model(moe_router_enable_expert_bias=True, moe_router_score_function="sigmoid"),
    "forced_balance": model(moe_router_force_load_balancing=True),
    "pre_softmax": model(moe_router_pre_softmax=True),
    "router_z_loss": model(moe_z_loss_coeff=1e-3),
    "aux_loss": model(moe_aux_loss_coeff=0.02),
    "output_init": around("megatron.core.transformer.transformer_config:scaled_init_method_normal", _output_init),
    "matmul_precision": {"torch": _matmul},
    "reduced_precision": {"torch": _reduced},
    "cudnn_benchmark": {"torch": _tuned},
    "no_collection": silent("engine_train:gc.enable"),
    "edited_settings": {"engine_settings": _edited},
    "jitter": model(moe_input_jitter_eps=0.01),
}
"""Name → what it changes."""


def planted(name: str) -> list[str]:
    """Plant the fault `name`; return the modules that must be imported for it, less those that have been, as they
    are imported."""
    waiting: list[str] = []
    for module, hook in FAULTS[name].items():
        waiting.append(module)

        def change(loaded: Any, hook: Hook = hook) -> None:
            hook(loaded)
            waiting.remove(loaded.__name__)

        after(module)(change)
    return waiting


def main() -> None:
    name, program = sys.argv[1:3]
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path(program).parent)
    waiting = planted(name)
    ended: Any = 0
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        ended = end.code
    if waiting or FAILED:
        sys.exit(f"the fault {name} was not planted: {waiting} {FAILED}")
    sys.exit(ended)


if __name__ == "__main__":
    main()
