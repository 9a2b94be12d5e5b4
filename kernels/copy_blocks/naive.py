"""The reference: one torch copy a block and tensor."""

from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.launch_queue import LaunchQueue, on_its_stream
from hybrid_blocks.kernels.moves import Moves


@on_its_stream
def copy_blocks(queue: LaunchQueue, group: BlockTensors, moves: Moves, max_sms: int | None) -> None:
    """Copy the listed blocks one by one, or all at once, skipping padding."""
    pairs = zip(moves.src.tolist(), moves.dst.tolist(), strict=True)
    inside = range(group.num_blocks)
    known = [(source, target) for source, target in pairs if source in inside and target in inside]
    for tensor in group.tensors:
        if moves.order == "gather_then_scatter":
            tensor[[target for _, target in known]] = tensor[[source for source, _ in known]]
            continue
        for source, target in known:
            tensor[target].copy_(tensor[source])
