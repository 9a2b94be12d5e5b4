"""The reference: one torch expression a block and layer."""

from collections.abc import Iterator

import torch
from hybrid_blocks.kernels.convert_state.codec import LARGEST, SMALLEST_HEAD, StateCodec
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch_queue import LaunchQueue, on_its_stream


@on_its_stream
def encode(
    queue: LaunchQueue, codec: StateCodec, src: IdList, dst: IdList, max_sms: int | None
) -> None:
    """Convert float32 blocks one by one, skipping padding."""
    for state, packed, scale in _pairs(codec, src, dst):
        if scale is None:
            packed.copy_(state)
        else:
            values, scales = quantize(state, packed.dtype)
            packed.copy_(values)
            scale.copy_(scales)


@on_its_stream
def decode(
    queue: LaunchQueue, codec: StateCodec, src: IdList, dst: IdList, max_sms: int | None
) -> None:
    """Convert packed blocks back one by one, skipping padding."""
    for state, packed, scale in _pairs(codec, dst, src):
        state.copy_(packed)
        if scale is not None:
            state.mul_(scale.reshape(-1, *(1,) * (state.dim() - 1)))


def quantize(state: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one block's values in ``dtype`` and their scale a head.

    ``state`` is float32 ``[heads, ...]``; the scale is ``max|x| / largest``, symmetric around 0.
    """
    largest = LARGEST[str(dtype).removeprefix("torch.")]
    flat = state.reshape(state.shape[0], -1)
    peak = flat.abs().amax(dim=1)
    finite = peak.isfinite()
    usable = finite & (peak >= SMALLEST_HEAD)
    # A tensor, for torch's CUDA kernels multiply by the reciprocal of a number.
    most = torch.full_like(peak, largest)
    inverse = torch.where(usable, most / peak, 0.0)
    scale = torch.where(usable, peak / most, torch.where(finite, 0.0, torch.nan))
    scaled = (torch.where(usable[:, None], flat, 0.0) * inverse[:, None]).clamp(-largest, largest)
    if dtype == torch.int8:
        scaled = scaled.round()
    return scaled.to(dtype).reshape(state.shape), scale


def _pairs(
    codec: StateCodec, slots: IdList, blocks: IdList
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    """Yield the state, the packed block and its scales, if any, of each pair and layer."""
    for slot, block in zip(slots.tolist(), blocks.tolist(), strict=True):
        if not (0 <= slot < codec.state.num_blocks and 0 <= block < codec.packed.num_blocks):
            continue
        for layer, state in enumerate(codec.state.tensors):
            scale = None if codec.scales is None else codec.scales.tensors[layer][block]
            yield state[slot], codec.packed.tensors[layer][block], scale
