"""Move per-group state on the device: one launch covers every layer and tensor of a group.

Each operation is a folder with three versions of the same work: ``naive`` (plain torch, the
reference), ``triton`` and ``cupy`` (CUDA C++, compiled and launched by CuPy). The functions here
check their arguments on the host and pick the best version that the tensors' device can run.
Nothing here knows a manager: tensors and int32 arrays come in, bytes move.
"""

from hybrid_blocks.kernels.backend import Backend, usable_backends
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.convert_states import convert_states
from hybrid_blocks.kernels.convert_states.pools import Place, Run, StateLayout, StatePools
from hybrid_blocks.kernels.copy_blocks import copy_blocks
from hybrid_blocks.kernels.gather_scatter import gather_blocks, scatter_blocks

__all__ = [
    "Backend",
    "BlockTensors",
    "Place",
    "Run",
    "StateLayout",
    "StatePools",
    "convert_states",
    "copy_blocks",
    "gather_blocks",
    "scatter_blocks",
    "usable_backends",
]
