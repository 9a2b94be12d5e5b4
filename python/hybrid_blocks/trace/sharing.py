"""What the requests of a trace have in common, whatever serves them."""

from dataclasses import dataclass

import numpy as np

from hybrid_blocks.trace.prefixes import prefix_ids
from hybrid_blocks.trace.trace import Trace

MAX_BLOCKS = 50_000_000
"""Above this many blocks in a trace the measurement would take gigabytes."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Prefix sharing at one block size, with nothing ever evicted.

    Attributes:
        unique_blocks: distinct full blocks, each told apart by all tokens up to its end.
        hit_tokens: prompt tokens that a cache of every earlier request would serve, if requests
            ran one after another in the order of the trace.
    """

    unique_blocks: int
    hit_tokens: int


def measure_sharing(trace: Trace, block_size: int) -> Sharing | None:
    """Measure a trace, or return None if it has more than `MAX_BLOCKS` blocks.

    A request's last output token is never computed and at least one prompt token always is, so a
    request leaves ``(prompt + output - 1) // block_size`` blocks in the cache and can be served
    ``(prompt - 1) // block_size`` of them from it.
    """
    blocks = (trace.total_tokens - 1) // block_size
    if blocks.sum() > MAX_BLOCKS:
        return None
    prefixes, start = prefix_ids(trace, block_size)
    request_of = np.repeat(np.arange(len(trace)), blocks)
    _, first, inverse = np.unique(prefixes, return_index=True, return_inverse=True)
    seen = request_of[first][inverse] < request_of
    in_prompt = np.arange(len(prefixes)) - start[request_of] < (
        (trace.prompt_tokens[request_of] - 1) // block_size
    )
    return Sharing(len(first), int((seen & in_prompt).sum()) * block_size)
