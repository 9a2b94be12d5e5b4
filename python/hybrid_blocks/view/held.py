"""What one request holds of the memory, group by group, in the blocks of a plan."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from hybrid_blocks.plan.geometry.arena import ArenaPlan
from hybrid_blocks.plan.report.budget import live_bytes
from hybrid_blocks.plan.vllm import VllmPlan

OWNERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "full": "attention",
        "mla": "latent attention",
        "sliding_window": "windows",
        "chunked": "chunks",
        "cross": "cross attention",
        "state": "states",
        "mamba": "states",
        "ring": "index keys",
    }
)
"""What a page calls the kinds of groups of both plans."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks alike that one request holds: their number, and the bytes of one of them.

    Runs of one ``pool`` share slabs. The bytes are those of `Budget`'s parts.
    """

    owner: str
    pool: int
    count: int
    live: int
    rounding: int
    padding: int

    @property
    def total(self) -> int:
        """Bytes of all blocks of the run."""
        return self.count * (self.live + self.rounding + self.padding)


def held_in_slabs(geometry: ArenaPlan, length: int) -> tuple[Run, ...]:
    """Return what a decoding request of ``length`` tokens holds of an arena, states first."""
    runs: list[Run] = []
    for group in sorted(geometry.groups, key=lambda group: -group.pool):
        count = group.blocks(length, geometry.decode_tokens)
        runs += _runs(
            OWNERS[group.kind],
            group.pool,
            count=count,
            live=group.live_bytes(length),
            content=group.block_bytes,
            size=group.block_stride,
        )
    return tuple(runs)


def held_in_blocks(plan: VllmPlan, length: int) -> tuple[Run, ...]:
    """Return what a decoding request of ``length`` tokens holds of vLLM's pool."""
    runs: list[Run] = []
    for group, held in zip(plan.groups, plan.widest_stage, strict=True):
        specs = [member.spec for member in held.members]
        runs += _runs(
            OWNERS[group.spec.kind],
            0,
            count=group.spec.decode_blocks(length, plan.decode_tokens),
            live=sum(live_bytes(spec, length) for spec in specs),
            content=sum(spec.unpadded_bytes for spec in specs),
            size=plan.block_bytes,
        )
    return tuple(runs)


def _runs(
    owner: str, pool: int, *, count: int, live: int, content: int, size: int
) -> Iterator[Run]:
    """Cut the blocks of a group into full ones, the one in part full, and those that are empty."""
    full = min(live // content, count) if content else 0
    rest = live - full * content
    parts = [(full, content)]
    if full < count and rest:
        parts.append((1, rest))
    parts.append((count - full - bool(full < count and rest), 0))
    for blocks, used in parts:
        if blocks:
            yield Run(
                owner=owner,
                pool=pool,
                count=blocks,
                live=used,
                rounding=content - used,
                padding=size - content,
            )
