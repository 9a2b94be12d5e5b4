"""How vLLM groups the layers of sparse attention, whose index needs a block-outermost layout.

Follows ``_get_packed_kv_cache_groups`` in ``vllm/v1/core/kv_cache_planning.py`` (0.33): pages keep
their sizes, and a block is as large as the largest group's pages.
"""

from typing import TYPE_CHECKING, Final

from hybrid_blocks.arithmetic import ceil_div, round_up
from hybrid_blocks.tools.plan.vllm.grouping import Member, VllmGroup

if TYPE_CHECKING:
    from hybrid_blocks.tools.plan.vllm.spec import Spec

_STATES: Final = ("mamba", "ring")


def group(members: tuple[Member, ...]) -> tuple[VllmGroup, ...]:
    """Cut the layers into groups.

    A full layer with its index is one member, and stands for two pages; so all full layers stay
    together. Groups of the other kinds have as many layers as leave the fewest places empty. States
    are cut further where a group would not fit into the block of the full layers.
    """
    kinds: dict[Spec, list[Member]] = {}
    for member in members:
        kinds.setdefault(member.spec, []).append(member)
    whole = max(len(kind) for spec, kind in kinds.items() if spec.kind not in _STATES)
    size = _least_padding([len(kind) for kind in kinds.values()], whole)
    block_bytes = max(
        spec.page_bytes * (1 if spec.kind in _STATES else len(kind)) for spec, kind in kinds.items()
    )
    groups = []
    for spec, kind in kinds.items():
        number = ceil_div(len(kind), size)
        if spec.kind in _STATES:
            number = max(number, ceil_div(len(kind), max(block_bytes // spec.page_bytes, 1)))
        groups += [VllmGroup(tuple(kind[index::number])) for index in range(number)]
    return tuple(groups)


def _least_padding(counts: list[int], fewest: int) -> int:
    """Return the size, from ``fewest`` on, to whose multiples the counts are nearest."""
    sizes = range(fewest, max(counts) + 1)
    return min(sizes, key=lambda size: (sum(round_up(n, size) - n for n in counts), -size))
