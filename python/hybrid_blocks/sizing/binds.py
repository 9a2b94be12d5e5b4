"""What keeps an engine from serving more."""

from typing import Final

import numpy as np

from hybrid_blocks.replay import Cache, Engine

STATE_SLOTS: Final = "state slots"
ATTENTION: Final = "attention"
BATCH: Final = "--max-num-seqs"
COMPUTE: Final = "compute"

_OFTEN: Final = 0.05
"""A limit binds in at least this share of the steps."""


def what_binds(engine: Engine, cache: Cache) -> str:
    """Name the limit that requests wait for.

    Memory binds if requests wait for it in a twentieth of the steps: the state slots or the
    attention, by the larger part of what the running requests need. Then comes the size of the
    batch. All else is compute.
    """
    load = engine.full_load
    if load.steps >= _OFTEN * max(len(engine.meter.steps), 1):
        states = sum(
            group.live_bytes(0) for group in cache.geometry.groups if group.kind == "state"
        )
        return STATE_SLOTS if 2 * states * load.running > load.live_bytes else ATTENTION
    running = np.frombuffer(engine.timeline.running, dtype=np.int64)
    if len(running) and (running >= engine.config.max_num_seqs).mean() >= _OFTEN:
        return BATCH
    return COMPUTE
