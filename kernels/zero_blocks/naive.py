"""The reference: one torch fill a block and tensor."""

from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch_queue import LaunchQueue, on_its_stream


@on_its_stream
def zero_blocks(queue: LaunchQueue, group: BlockTensors, ids: IdList, max_sms: int | None) -> None:
    """Clear the listed blocks one by one, skipping padding."""
    for block in ids.tolist():
        if 0 <= block < group.num_blocks:
            for tensor in group.tensors:
                tensor[block].zero_()
