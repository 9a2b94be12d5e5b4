"""How many blocks a model has in a given memory.

This is the only place that turns a model and bytes into blocks.
"""

import re

from hybrid_blocks.model import Rank, load_model
from hybrid_blocks.model.layer import FullAttention, LatentAttention
from hybrid_blocks.replay.errors import ReplayError
from hybrid_blocks.trace import Trace

UNBOUNDED = "unbounded"

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", start=1)}
_UNITS |= {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", start=1)}


def parse_bytes(text: str) -> int:
    """Read a size such as ``24GiB``, ``1.5 GB`` or ``4096``."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if not match or match[2] not in _UNITS:
        raise ReplayError(f"{text!r} is not a size; write for example 24GiB or 8000MB")
    return int(float(match[1]) * _UNITS[match[2]])


def bytes_per_token(model: str) -> int:
    """Return the cache bytes of one token in all layers, with 16-bit keys and values.

    ``model`` is what `hybrid_blocks.model.load_model` takes. Every layer has to keep every token.
    """
    layers = load_model(model).layers
    total = 0
    for layer in layers:
        if not isinstance(layer.cache, FullAttention | LatentAttention):
            raise ReplayError(
                f"{model} has {layer.cache.kind} layers; a replay sizes its pool for models whose "
                "layers all keep every token. Give --num-blocks instead"
            )
        total += layer.cache.token_bytes(Rank())
    return total


def num_blocks_for(
    trace: Trace,
    *,
    model: str,
    memory: str,
    block_size: int,
    num_blocks: str | None = None,
) -> int:
    """Return the size of the pool.

    ``num_blocks`` is a number, or `UNBOUNDED` for as many blocks as all requests would take if
    none shared or gave back any; None asks for the blocks of ``model`` that fit into ``memory``
    beside the null block.
    """
    if num_blocks == UNBOUNDED:
        return int((-(-trace.total_tokens // block_size)).sum())
    if num_blocks is not None:
        if not num_blocks.isdecimal() or int(num_blocks) < 1:
            raise ReplayError(f"{num_blocks!r} is neither a number of blocks nor {UNBOUNDED!r}")
        return int(num_blocks)
    available, block = parse_bytes(memory), block_size * bytes_per_token(model)
    if available < 2 * block:
        raise ReplayError(
            f"{memory} is {available:,} bytes; the null block and one block of {model} take "
            f"{2 * block:,}. Raise --memory or lower --block-size"
        )
    return available // block - 1
