"""Prefill checkpoints: states that a forward leaves behind between two tokens of a prompt.

Each is the request's running state after ``position`` tokens, copied while the forward runs.
"""

from typing import NamedTuple


class PrefillCheckpoint(NamedTuple):
    """A state of one group after ``position`` tokens of a request, left in ``dst_block``.

    The request's running state is in ``src_block``. vLLM's own function for copies refuses a tuple
    of this length, so it never takes a checkpoint for a copy that precedes the forward.
    """

    request_id: str
    group: int
    position: int
    src_block: int
    dst_block: int
