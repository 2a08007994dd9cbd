"""Several runs of the engine one after the other in one set of processes, for tests: torchrun ... together.py FILE...

What a run prints is the engine's own; a line `=== FILE` goes before it. The first run that fails ends all."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "launchers" / "ranks"))


def main(paths: list[str]) -> None:
    """Run the settings in `paths`, all of one world size."""
    import engine
    import rank_program

    rank_program.die_with_parent()
    engine.silence()
    import engine_standin

    stand_in = engine_standin.install()
    import engine_train
    from engine_settings import read_settings
    from megatron.core import parallel_state
    from torch import distributed

    distributed.init_process_group("gloo")
    world, destroy = distributed.group.WORLD, distributed.destroy_process_group

    def destroy_others() -> None:
        """The world stays: a second one would meet the first one's addresses. Every other group has threads."""
        parallel_state.destroy_model_parallel()
        for group in [group for group in distributed.distributed_c10d._world.pg_map if group != world]:
            destroy(group)

    distributed.init_process_group = lambda _: None
    distributed.destroy_process_group = destroy_others
    for path in paths:
        if os.environ["RANK"] == "0":
            print(f"=== {path}", flush=True)
        distributed.barrier()
        engine_train.train(read_settings(path), stand_in, Path(path).parent / "checkpoints")
        gc.unfreeze()  # train() freezes all there is: the last run's groups, with their threads, would stay
        gc.collect()


if __name__ == "__main__":
    main(sys.argv[1:])
