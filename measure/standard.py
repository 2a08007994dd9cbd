"""The model whose steps say what one device trains: published sizes, so that machines can be compared by it."""

from __future__ import annotations

from measure.cases import Standard

_SIZES = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels"),
    *("padded_vocab_size", "norm_epsilon", "rotary_base"),
)
_OF_GPU = ("llama32_1b", (1, 4), (2048, 8192))
_OF_CPU = ("llama_tiny", (1, 4, 16), (64, 128, 256))


def standard(accelerator: bool) -> Standard:
    """Return the standard model of GPUs or of CPUs, in plain PyTorch (launchers/ranks/plain_llama.py)."""
    from conf import load_experiment
    from conf.vocabulary import vocabulary
    from launchers.frameworks.megatron import settings
    from metrics.flops import flops_per_token
    from metrics.shape import shape_of_model

    name, batches, sequences = _OF_GPU if accelerator else _OF_CPU
    e = load_experiment("platform=cpu", f"model={name}", f"training.seq_length={max(sequences)}")
    known, shape = settings(e), shape_of_model(e.model)
    flops = {seq: flops_per_token(shape, seq) for seq in sequences}
    optimizer = [key for key, row in vocabulary().items() if row.kind == "optimizer" and key in known]
    return Standard(name, {key: known[key] for key in (*_SIZES, *optimizer)}, batches, flops, _parameters(known))


def _parameters(s: dict[str, int]) -> int:
    heads, width = s["num_attention_heads"] + s["num_query_groups"], s["kv_channels"]
    layer = 2 * s["hidden_size"] * (heads * width) + 3 * s["hidden_size"] * s["ffn_hidden_size"]
    return s["num_layers"] * layer + 2 * s["padded_vocab_size"] * s["hidden_size"]
