"""Ordered copies cut into waves: within one, no copy reads or rewrites what another writes."""

import numpy as np
from hybrid_blocks.kernels.blocks import Int32s

Wave = tuple[Int32s, Int32s]


def ordered_waves(src: Int32s, dst: Int32s) -> list[Wave]:
    """Return waves that, run one after another, equal the copies made one by one in list order.

    A read of an earlier destination is sent to that block's origin, and a destination written
    twice keeps its last writer, so only a write to a block that the wave still has to read
    starts a new wave. The usual list, with no id on both sides, is one wave and is not copied.
    """
    moving = src != dst
    if not moving.all():
        src, dst = src[moving], dst[moving]
    if not len(src):
        return []
    if len(np.unique(dst)) == len(dst) and not np.isin(src, dst).any():
        return [(src, dst)]
    waves: list[dict[int, int]] = [{}]
    readers: dict[int, int] = {}  # how many copies of the open wave read a block
    for source, target in zip(src.tolist(), dst.tolist(), strict=True):
        origin_of = waves[-1]
        source = origin_of.get(source, source)  # noqa: PLW2901
        if source == target:  # the block gets back what it still holds
            continue
        if readers.get(target):
            origin_of = {}
            waves.append(origin_of)
            readers.clear()
        elif target in origin_of:
            readers[origin_of[target]] -= 1
        origin_of[target] = source
        readers[source] = readers.get(source, 0) + 1
    return [
        (np.fromiter(wave.values(), np.int32), np.fromiter(wave.keys(), np.int32))
        for wave in waves
        if wave
    ]
