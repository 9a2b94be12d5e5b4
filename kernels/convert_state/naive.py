"""The reference: one torch expression a block and layer."""

from collections.abc import Iterator

import torch
from hybrid_blocks.kernels.convert_state.codec import LARGEST, SMALLEST_HEAD, StateCodec
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch_queue import LaunchQueue, on_its_stream


@on_its_stream
def encode(
    queue: LaunchQueue,  # noqa: ARG001
    codec: StateCodec,
    src: IdList,
    dst: IdList,
    max_sms: int | None,  # noqa: ARG001
) -> None:
    """Convert float32 blocks one by one, skipping padding."""
    for slot, block in _pairs(src, codec.state.num_blocks, dst, codec.packed.num_blocks):
        for layer, (state, packed) in enumerate(
            zip(codec.state.tensors, codec.packed.tensors, strict=True)
        ):
            if codec.scales is None:
                packed[block] = state[slot].to(packed.dtype)
                continue
            values, scale = quantize(state[slot], packed.dtype)
            packed[block] = values
            codec.scales.tensors[layer][block] = scale


@on_its_stream
def decode(
    queue: LaunchQueue,  # noqa: ARG001
    codec: StateCodec,
    src: IdList,
    dst: IdList,
    max_sms: int | None,  # noqa: ARG001
) -> None:
    """Convert packed blocks back one by one, skipping padding."""
    for block, slot in _pairs(src, codec.packed.num_blocks, dst, codec.state.num_blocks):
        for layer, (state, packed) in enumerate(
            zip(codec.state.tensors, codec.packed.tensors, strict=True)
        ):
            values = packed[block].to(torch.float32)
            if codec.scales is not None:
                scale = codec.scales.tensors[layer][block]
                values *= scale.reshape(-1, *(1,) * (values.dim() - 1))
            state[slot] = values


def quantize(state: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one block's values in ``dtype`` and their scale a head.

    ``state`` is float32 ``[heads, ...]``; the scale is ``max|x| / largest``, symmetric around 0.
    """
    largest = LARGEST[str(dtype).removeprefix("torch.")]
    flat = state.reshape(state.shape[0], -1)
    peak = flat.abs().amax(dim=1)
    finite = peak.isfinite()
    usable = finite & (peak >= SMALLEST_HEAD)
    inverse = torch.where(usable, largest / peak, 0.0)
    scale = torch.where(usable, peak / largest, torch.where(finite, 0.0, torch.nan))
    scaled = (torch.where(usable[:, None], flat, 0.0) * inverse[:, None]).clamp(-largest, largest)
    if dtype == torch.int8:
        scaled = scaled.round()
    return scaled.to(dtype).reshape(state.shape), scale


def _pairs(src: IdList, num_src: int, dst: IdList, num_dst: int) -> Iterator[tuple[int, int]]:
    for source, target in zip(src.tolist(), dst.tolist(), strict=True):
        if 0 <= source < num_src and 0 <= target < num_dst:
            yield source, target
