"""The manager's state of a request while vLLM knows it."""

from dataclasses import dataclass, field
from itertools import islice

from vllm.v1.kv_offload.base import OffloadKey, ReqContext
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from hybrid_blocks._core.offload import RequestKeys


@dataclass(eq=False)
class RequestState:
    """Look-up state of one request.

    ``keys`` are those that `keys_of` last found. ``chain`` is its number in the host cache once it
    stores. ``num_tokens`` is the length that the last look-up found, at least the ``num_computed``
    that the device holds. That is valid while the host's ``version`` is that of the look-up, and
    the device holds as much. Nothing ends between ``next_end`` and the shortest length of vLLM's
    questions. vLLM loaded no more than ``limit`` so far. ``num_passed_by`` could be restored beyond
    ``num_tokens`` and are sooner computed. The request has computed or loaded ``num_reached``, and
    its last look-up knew ``num_known``. Keys in ``waiting`` are being read for it, and those in
    ``held`` are pinned for it. ``promotions`` are the host cache's numbers for its reads.
    """

    keys: RequestKeys
    chain: int | None = None
    generation: int = 0
    version: int = -1
    num_computed: int = 0
    num_tokens: int = 0
    next_end: int = 0
    limit: int | None = None
    num_passed_by: int = 0
    num_reached: int = 0
    num_known: int = 0
    waiting: set[bytes] = field(default_factory=set)
    held: list[bytes] = field(default_factory=list)
    promotions: list[int] = field(default_factory=list)
    # Number of takes of ended transfers, and the key of the first question after the last take.
    first_asked: tuple[int, bytes] = (-1, b"")
    # By group, the step and the position of the last question that was put off.
    deferred: dict[int, tuple[int, int]] = field(default_factory=dict)
    # Brought up for this request, and from where.
    promoted: dict[OffloadKey, CacheHitSource] = field(default_factory=dict)
    # Bytes that are read and held for it.
    promotion_bytes: int = 0
    # When it first found no room for a read, and the host's ``num_releases`` when it last did.
    refused_since: float | None = None
    refused_at: int = 0
    # A read for it failed or can have no room: it goes on with what host memory has.
    is_below_off: bool = False

    def keys_of(self, context: ReqContext) -> RequestKeys:
        """Return all keys that the request's context names by now."""
        # The context answers only for one key at a time, and a look-up needs all in one call.
        positions = context._offload_key_positions
        if len(positions) > len(self.keys):
            keys, tokens = zip(*islice(positions.items(), len(self.keys), None), strict=True)
            self.keys.extend(keys, tokens)
        return self.keys


def all_keys(context: ReqContext) -> tuple[list[OffloadKey], list[int]]:
    """All keys of a request and the tokens they stand for, each group's in order."""
    positions = context._offload_key_positions
    return list(positions), list(positions.values())
