"""Where every byte of the memory goes, when it holds as many requests of one length as fit."""

import msgspec

from hybrid_blocks.plan.geometry import capacity
from hybrid_blocks.plan.geometry.arena import ArenaPlan
from hybrid_blocks.plan.vllm import VllmPlan
from hybrid_blocks.plan.vllm.spec import Spec


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one GPU's free KV memory; all but ``length`` and ``requests`` add up to it.

    ``live``      tokens that are still read, and states.
    ``rounding``  blocks that are not full, or reach out of a window.
    ``padding``   pages, strides and empty layers that equalize blocks.
    ``null``      the null block, or the slab that holds the null blocks.
    ``unused``    room for less than one more request.
    ``tail``      memory behind the last whole slab or block.
    """

    length: int
    requests: int
    live: int
    rounding: int
    padding: int
    null: int
    unused: int
    tail: int

    @property
    def total(self) -> int:
        """The whole memory."""
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by name, in the order in which they are shown."""
        return {
            "live": self.live,
            "rounding": self.rounding,
            "padding": self.padding,
            "null": self.null,
            "unused": self.unused,
            "tail": self.tail,
        }


def natural_budget(geometry: ArenaPlan, length: int) -> Budget:
    """Budget of an arena full of decoding requests of ``length`` tokens."""
    requests = capacity.requests(geometry, length)
    live = requests * geometry.live_bytes(length)
    blocks = [
        (group, requests * group.blocks(length, geometry.decode_tokens))
        for group in geometry.groups
    ]
    held = sum(count * group.block_bytes for group, count in blocks)
    padded = sum(count * group.block_stride for group, count in blocks)
    return Budget(
        length=length,
        requests=requests,
        live=live,
        rounding=held - live,
        padding=padded - held,
        null=geometry.slab_bytes,
        unused=geometry.usable_slabs * geometry.slab_bytes - padded,
        tail=geometry.memory_bytes - geometry.arena_bytes,
    )


def vllm_budget(plan: VllmPlan, length: int) -> Budget:
    """Budget of vLLM's pool full of decoding requests of ``length`` tokens."""
    requests = plan.requests(length)
    live = pages = 0
    for group in plan.widest_stage:
        for member in group.members:
            count = member.spec.decode_blocks(length, plan.decode_tokens)
            live += live_bytes(member.spec, length)
            pages += count * member.spec.unpadded_bytes
    blocks = requests * plan.decode_blocks(length) * plan.block_bytes
    return Budget(
        length=length,
        requests=requests,
        live=requests * live,
        rounding=requests * (pages - live),
        padding=blocks - requests * pages,
        null=plan.block_bytes,
        unused=(plan.num_blocks - 1) * plan.block_bytes - blocks,
        tail=plan.memory_bytes - plan.num_blocks * plan.block_bytes,
    )


def live_bytes(spec: Spec, length: int) -> int:
    """Bytes that a request of ``length`` tokens needs in one layer, with no rounding to blocks."""
    if spec.states is not None:
        return spec.states * spec.unpadded_bytes
    return spec.rules.num_live_tokens(length) * spec.unpadded_bytes // spec.block_tokens
