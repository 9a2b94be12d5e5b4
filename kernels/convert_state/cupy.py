"""CUDA C++: one thread block a head, which waits in shared memory for its scale."""

from functools import cache
from typing import Any

import cupy
import numpy as np
import torch
from hybrid_blocks.kernels import cuda
from hybrid_blocks.kernels.convert_state.codec import StateCodec

THREADS = 256
STATIC_SHARED_BYTES = 1024  # what the kernels may take beside the head


def encode(codec: StateCodec, src: torch.Tensor, dst: torch.Tensor) -> None:
    """Launch float32 to packed."""
    head_bytes = codec.head_elements * 4
    device = codec.state.device.index or 0
    stashed = codec.scales is not None and head_bytes <= _largest_head(device)
    function = _encoder(f"encode_{codec.format}", device)
    _launch(function, codec, src, dst, shared_bytes=head_bytes if stashed else 0)


def decode(codec: StateCodec, src: torch.Tensor, dst: torch.Tensor) -> None:
    """Launch packed to float32."""
    function = cuda.kernel("convert_state", f"decode_{codec.format}")
    _launch(function, codec, dst, src)


def _launch(
    function: Any,
    codec: StateCodec,
    slots: torch.Tensor,
    blocks: torch.Tensor,
    *,
    shared_bytes: int = 0,
) -> None:
    layers, heads = codec.tables()
    cuda.launch(
        function,
        (len(heads) * len(slots), THREADS),
        codec.state.device,
        (
            layers,
            heads,
            np.int32(len(heads)),
            slots,
            blocks,
            np.int32(codec.state.num_blocks),
            np.int32(codec.packed.num_blocks),
            np.int32(codec.vectorised),
            np.int32(shared_bytes > 0),
        ),
        shared_bytes,
    )


@cache
def _largest_head(device: int) -> int:
    """Return the bytes of shared memory that a thread block can have for its head."""
    optin = cupy.cuda.Device(device).attributes["MaxSharedMemoryPerBlockOptin"]
    return int(optin) - STATIC_SHARED_BYTES


@cache
def _encoder(name: str, device: int) -> Any:
    """Return an encode kernel that may be launched with any head that fits.

    The limit belongs to the function, whatever heads it is launched with later, so it is set once.
    """
    function = cuda.kernel("convert_state", name)
    with cupy.cuda.Device(device):
        function.max_dynamic_shared_size_bytes = _largest_head(device)
    return function
