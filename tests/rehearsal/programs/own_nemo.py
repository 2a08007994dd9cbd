"""Do as a user of NeMo does: a recipe made small, run by NeMo-Run. It knows nothing of a rehearsal."""

from __future__ import annotations

import sys

import nemo_run as run
from nemo.collections import llm
from nemo.collections.common.tokenizers.null_tokenizer import NullTokenizer


def configured(folder: str) -> run.Partial:
    """Llama 3.1 8B's recipe, two layers of it, without what needs TransformerEngine."""
    recipe = llm.llama31_8b.pretrain_recipe(dir=folder, name="own", num_nodes=1, num_gpus_per_node=1)
    model = recipe.model.config
    model.num_layers, model.hidden_size, model.ffn_hidden_size, model.seq_length = 2, 128, 256, 64
    model.num_attention_heads, model.num_query_groups = 4, 2
    for fusion in ("apply_rope", "bias_activation", "bias_dropout", "masked_softmax", "gradient_accumulation"):
        setattr(model, f"{fusion}_fusion", False)
    model.persist_layer_norm = model.cross_entropy_loss_fusion = False
    data = recipe.data
    data.seq_length, data.global_batch_size, data.micro_batch_size, data.num_workers = 64, 4, 1, 0
    data.num_train_samples, data.tokenizer = 64, run.Config(NullTokenizer, vocab_size=8000)
    recipe.trainer.strategy.context_parallel_size = 1
    recipe.trainer.max_steps = recipe.trainer.val_check_interval = 3
    recipe.trainer.limit_val_batches = 0
    recipe.log.ckpt = recipe.resume = None
    recipe.trainer.enable_checkpointing = False
    return recipe


if __name__ == "__main__":
    run.run(configured(sys.argv[1]), direct=True)
