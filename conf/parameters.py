"""How many parameters a model has, in total and on one rank. Exact integers; no memory in bytes, no MoE."""

from __future__ import annotations

from dataclasses import dataclass

from conf.schema import Model


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters by part. Vocabulary unpadded, as published totals count it; tied embeddings count once."""

    embedding: int
    output: int
    per_layer_attention: int
    per_layer_mlp: int
    per_layer_norms: int
    final_norm: int
    num_layers: int

    @property
    def per_layer(self) -> int:
        return self.per_layer_attention + self.per_layer_mlp + self.per_layer_norms

    @property
    def total(self) -> int:
        return self.embedding + self.output + self.num_layers * self.per_layer + self.final_norm


def count(model: Model) -> Parameters:
    """Parameters of `model`, from the shapes of Hugging Face's LlamaForCausalLM and Qwen2ForCausalLM.

    Raises:
        ValueError: a mixture of experts, which this does not count.
    """
    _check_dense(model)
    table = model.vocab_size * model.hidden_size
    return Parameters(
        embedding=table,
        output=table if model.untie_embeddings_and_output_weights else 0,
        per_layer_attention=_attention_split(model) + _row_parallel_bias(model),
        per_layer_mlp=_mlp_split(model) + _row_parallel_bias(model),
        per_layer_norms=2 * model.hidden_size,
        final_norm=model.hidden_size,
        num_layers=model.num_layers,
    )


def per_rank(model: Model, *, tensor_model_parallel_size: int, pipeline_model_parallel_size: int) -> int:
    """Parameters that the fullest rank holds. See `per_stage`."""
    return max(per_stage(model, tensor_model_parallel_size, pipeline_model_parallel_size))


def per_stage(model: Model, tensor_model_parallel_size: int, pipeline_model_parallel_size: int) -> tuple[int, ...]:
    """Parameters of one rank in each pipeline stage, with the padded vocabulary.

    As Megatron-Core cuts them (core/tensor_parallel/layers.py: ColumnParallelLinear splits weight and bias,
    RowParallelLinear its weight only; VocabParallelEmbedding splits the rows): biases of row-parallel matrices and the
    norms are on every rank. The first stage has the embedding, the last the output matrix and the final norm; a tied
    last stage that is not also the first holds its own copy of the embedding.

    Raises:
        ValueError: a mixture of experts, or sizes that do not divide the model.
    """
    tp, pp = tensor_model_parallel_size, pipeline_model_parallel_size
    _check_dense(model)
    _check_divides(model, tp, pp)
    layer = (_attention_split(model) + _mlp_split(model)) // tp + _layer_replicated(model)
    table = model.padded_vocab_size * model.hidden_size // tp
    stages = [model.num_layers // pp * layer] * pp
    stages[0] += table
    stages[-1] += model.hidden_size
    if model.untie_embeddings_and_output_weights or pp > 1:
        stages[-1] += table
    return tuple(stages)


def _attention_split(model: Model) -> int:
    """Elements of QKV (grouped-query) and projection that tensor parallelism splits; QKV's bias among them."""
    query = model.num_attention_heads * model.kv_channels
    qkv = query + 2 * model.num_query_groups * model.kv_channels
    bias = qkv if model.add_qkv_bias or model.add_bias_linear else 0
    return model.hidden_size * (qkv + query) + bias


def _mlp_split(model: Model) -> int:
    """Elements of fc1 (gate and up in one) and fc2 that tensor parallelism splits; fc1's bias among them."""
    fc1 = model.ffn_hidden_size * (2 if model.swiglu else 1)
    bias = fc1 if model.add_bias_linear else 0
    return model.hidden_size * (fc1 + model.ffn_hidden_size) + bias


def _row_parallel_bias(model: Model) -> int:
    """Bias of the attention projection, and again of fc2: on every rank."""
    return model.hidden_size if model.add_bias_linear else 0


def _layer_replicated(model: Model) -> int:
    """Elements of a layer that every tensor-parallel rank holds: two norm weights, two row-parallel biases."""
    return 2 * model.hidden_size + 2 * _row_parallel_bias(model)


def _check_dense(model: Model) -> None:
    if model.num_experts is not None:
        raise ValueError(f"{model.name} has {model.num_experts} experts: parameters are counted for dense models only")


def _check_divides(model: Model, tp: int, pp: int) -> None:
    rules = {
        "num_attention_heads": (model.num_attention_heads, tp),
        "num_query_groups": (model.num_query_groups, tp),
        "ffn_hidden_size": (model.ffn_hidden_size, tp),
        "padded_vocab_size": (model.padded_vocab_size, tp),
        "num_layers": (model.num_layers, pp),
    }
    broken = [f"{name} {n} / {size}" for name, (n, size) in rules.items() if size < 1 or n % size]
    if broken:
        raise ValueError(f"TP {tp} × PP {pp} does not divide {model.name}: {', '.join(broken)}")
