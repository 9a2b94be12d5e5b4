"""The scheduler side's records of a request, and of a transfer."""

from dataclasses import dataclass, field
from typing import Any

from vllm.v1.kv_offload.base import OffloadKey, ReqContext, make_offload_key

from hybrid_blocks.offload.slabs.sources import Pin


@dataclass(eq=False)
class Held:
    """A request that vLLM knows. Its first ``num_stored`` tokens of attention were offered.

    After the last step that was scheduled it has ``num_reached`` tokens.
    Its client may say how many tokens at most are loaded, and stored.
    """

    request: Any
    context: ReqContext
    most_loaded: int | None = None
    most_stored: int | None = None
    num_stored: int = 0
    num_reached: int = 0
    num_keys: int = 0
    _passing: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Any, context: ReqContext) -> "Held":
        """Begin to know a request, and what its client says."""
        params = request.kv_transfer_params or {}
        most_loaded = _count(params.get("max_load_tokens"))
        most_stored = _count(params.get("max_offload_tokens"))
        return cls(request, context, most_loaded, most_stored)

    def name_keys(self, groups: tuple[int, ...], tokens: int) -> None:
        """Name a key for each group and each digest that came since the last call."""
        digests = self.request.block_hashes
        for position in range(self.num_keys, len(digests)):
            for group in groups:
                key = make_offload_key(digests[position], group)
                self.context.set_offload_key_position(key, (position + 1) * tokens)
        self.num_keys = len(digests)

    def key(self, group: int, num_tokens: int, tokens: int) -> OffloadKey:
        """Return the key of what ends after ``num_tokens`` tokens."""
        return make_offload_key(self.request.block_hashes[num_tokens // tokens - 1], group)

    def take_lasting(self, states: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the states of the prompt; those of the answer wait for `take_passing`.

        While an answer grows, each of its states takes the place of the one before.
        """
        num_prompt = self.request.num_prompt_tokens
        self._passing |= {group: end for group, end in states if end > num_prompt}
        return [it for it in states if it[1] <= num_prompt]

    def take_passing(self) -> list[tuple[int, int]]:
        """Return the last states of the answer so far, once."""
        passing, self._passing = self._passing, {}
        return list(passing.items())


def _count(value: Any) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if is_count else None


@dataclass(eq=False)
class Job:
    """A transfer, until all workers have carried out their part."""

    context: ReqContext
    keys: list[OffloadKey]
    num_workers: int
    pins: list[Pin] = field(default_factory=list)
    is_store: bool = True
