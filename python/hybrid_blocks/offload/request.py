"""What the manager keeps of a request while vLLM knows it."""

from dataclasses import dataclass, field

from vllm.v1.kv_offload.base import OffloadKey, ReqContext

from hybrid_blocks.offload.promotion import Promotion


@dataclass
class RequestState:
    """Of one request.

    ``chain`` is its number in the host cache once it stores. ``num_tokens`` is the length that the
    last look-up found, which holds while the manager's ``version`` is that of the look-up.
    """

    chain: int | None = None
    generation: int = 0
    version: int = -1
    num_tokens: int = 0
    promotion: Promotion = field(default_factory=Promotion)
    # Brought up from the disk for this request.
    promoted: set[OffloadKey] = field(default_factory=set)
    # A read for it failed: it goes on with what host memory has.
    is_disk_off: bool = False


def all_keys(context: ReqContext) -> tuple[list[OffloadKey], list[int]]:
    """All keys of a request and the tokens they stand for, each group's in order."""
    # The context answers only for one key at a time, and a look-up needs all in one call.
    positions = context._offload_key_positions
    return list(positions), list(positions.values())
