"""Do as a user of Megatron-Bridge does: a recipe made small. It knows nothing of a rehearsal."""

from __future__ import annotations

from megatron.bridge.models.gpt_provider import local_layer_spec
from megatron.bridge.recipes.llama import llama31_8b_pretrain_config
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain


def configured() -> object:
    """Llama 3.1 8B's recipe, two layers of it, without what needs TransformerEngine."""
    config = llama31_8b_pretrain_config()
    model = config.model
    model.num_layers, model.hidden_size, model.ffn_hidden_size, model.seq_length = 2, 128, 256, 64
    model.num_attention_heads, model.num_query_groups, model.kv_channels = 4, 2, 32
    model.context_parallel_size = model.tensor_model_parallel_size = 1
    model.transformer_layer_spec = local_layer_spec
    for fusion in ("bias_activation", "bias_dropout", "masked_softmax", "gradient_accumulation"):
        setattr(model, f"{fusion}_fusion", False)
    model.apply_rope_fusion = model.persist_layer_norm = model.cross_entropy_loss_fusion = False
    model.vocab_size, config.tokenizer.vocab_size = 1024, 1000
    config.dataset.sequence_length = 64
    config.dataset.num_workers = 0
    config.train.train_iters, config.train.global_batch_size, config.train.micro_batch_size = 3, 4, 1
    config.train.eval_iters = 0
    config.scheduler.lr_warmup_iters = 1
    config.logger.log_interval = 1
    config.checkpoint.save = config.checkpoint.load = None
    return config


if __name__ == "__main__":
    pretrain(configured(), forward_step)
