"""The reference: torch, some layers of some states at a time.

A head ``x`` of float32 numbers with largest magnitude ``a`` comes back as ``y``, up to a relative
2^-21:

- ``bf16``: ``|y - x| <= 2^-8 |x|``
- ``int8``: ``|y - x| <= a / 254``
- ``fp8`` (e4m3): ``|y - x| <= max(2^-4 |x|, 2^-10 a / 448)``

The 8-bit formats keep a float32 scale before each head. A head with ``a < 2^-100`` comes back as
zeros, and one that holds an infinity or a NaN as NaN throughout. Under ``bf16`` a NaN stays a NaN;
its other bits may differ from the Rust codec's.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import torch
from hybrid_blocks.kernels.convert_states.pools import (
    FLOAT_BYTES,
    Place,
    Run,
    StateLayout,
    StatePools,
)
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch_queue import LaunchQueue, on_its_stream

BATCH_BYTES: Final = 16 * 2**20
"""Bytes of running states that are converted at once, unless a single layer's state is larger.

Temporary memory is at most four times as much.
"""

SMALLEST_HEAD: Final = 2.0**-100
"""A head whose largest magnitude is below this is stored as zeros."""

_SCALED: Final = {"int8": (torch.int8, 127.0), "fp8": (torch.float8_e4m3fn, 448.0)}
"""Numbers of the 8-bit formats, and the magnitude that a head's largest one is mapped onto."""


@on_its_stream
def convert_states(
    queue: LaunchQueue, pools: StatePools, src: IdList, dst: IdList, keeps: bool
) -> None:
    """Convert the listed states, skipping padding."""
    convert(pools, src, dst, keeps=keeps)


def convert(pools: StatePools, src: IdList, dst: IdList, *, keeps: bool) -> None:
    """Convert on torch's current stream. For lists of the host nothing waits for the device."""
    layout = pools.layout
    sources, targets = _on_device(src, pools.device), _on_device(dst, pools.device)
    if not isinstance(src, np.ndarray):
        most = layout.num_running, layout.num_kept
        num_sources, num_targets = most if keeps else reversed(most)
        known = (sources >= 0) & (sources < num_sources) & (targets >= 0) & (targets < num_targets)
        sources, targets = sources[known], targets[known]
    at_once = max(1, BATCH_BYTES // layout.page_bytes)
    for some, others in zip(sources.split(at_once), targets.split(at_once), strict=True):
        for run, first, count in _batches(layout, len(some)):
            running = _Pages(pools.arena, run.running, first, count, layout.num_running)
            kept = _Pages(pools.arena, run.kept, first, count, layout.num_kept)
            _convert(layout, running, kept, some, others, keeps=keeps)


def _on_device(ids: IdList, device: torch.device) -> torch.Tensor:
    """Return ids where they are used. Pinned memory spares the host a wait."""
    if not isinstance(ids, np.ndarray):
        return ids.long()
    pinned = torch.tensor(ids, dtype=torch.int64, pin_memory=device.type == "cuda")
    return pinned.to(device, non_blocking=True)


def _batches(layout: StateLayout, num_copies: int) -> Iterator[tuple[Run, int, int]]:
    """Yield layers of each run, as many as are converted at once: the first, and how many."""
    at_once = max(1, BATCH_BYTES // (max(num_copies, 1) * layout.page_bytes))
    for run in layout.runs:
        for first in range(0, run.num_layers, at_once):
            yield run, first, min(at_once, run.num_layers - first)


class _Pages(NamedTuple):
    """Pages of ``num_layers`` layers from ``first`` on, of all blocks of a pool."""

    arena: torch.Tensor
    place: Place
    first: int
    num_layers: int
    num_blocks: int

    def view(self, start: int, *shape: int) -> torch.Tensor:
        """Return the bytes from ``start`` on of each page, in a shape: ``[block, layer, ...]``."""
        offset, layer_stride, block_stride = self.place
        inner = [shape[-1], 1] if len(shape) > 1 else [1]
        return self.arena.as_strided(
            (self.num_blocks, self.num_layers, *shape),
            (block_stride, layer_stride, *inner),
            self.arena.storage_offset() + offset + self.first * layer_stride + start,
        )


def _convert(
    layout: StateLayout,
    running: _Pages,
    kept: _Pages,
    sources: torch.Tensor,
    targets: torch.Tensor,
    *,
    keeps: bool,
) -> None:
    source, target = (running, kept) if keeps else (kept, running)
    if same := layout.num_same:
        found = source.view(0, same).index_select(0, sources)
        target.view(0, same).index_copy_(0, targets, found)
    states = running.view(same, layout.heads, layout.numbers * FLOAT_BYTES)
    checkpoints = kept.view(same, layout.heads, layout.head_bytes)
    if keeps:
        found = states.index_select(0, sources).view(torch.float32)
        checkpoints.index_copy_(0, targets, encode(found, layout.state_format))
    else:
        found = decode(checkpoints.index_select(0, sources), layout.state_format)
        states.index_copy_(0, targets, found.view(torch.uint8))


def encode(states: torch.Tensor, state_format: str) -> torch.Tensor:
    """Return the bytes of float32 heads, ``[..., head, number]``, as ``[..., head, byte]``."""
    if state_format == "bf16":
        return states.to(torch.bfloat16).view(torch.uint8)
    dtype, largest = _SCALED[state_format]
    peaks = states.abs().amax(-1, keepdim=True)
    is_finite = peaks.isfinite()
    is_kept = is_finite & (peaks >= SMALLEST_HEAD)
    # By a number torch would multiply with an inverse, and round twice.
    tops = torch.full_like(peaks, largest)
    scales = torch.where(is_kept, peaks / tops, 0.0).masked_fill_(~is_finite, torch.nan)
    scaled = states * (tops / peaks)
    scaled.masked_fill_(~is_kept, 0.0)
    # Both conversions round to the nearest, ties to even.
    scaled = scaled.round_() if dtype is torch.int8 else scaled.clamp_(-largest, largest)
    return torch.cat([scales.view(torch.uint8), scaled.to(dtype).view(torch.uint8)], -1)


def decode(stored: torch.Tensor, state_format: str) -> torch.Tensor:
    """Return the float32 heads of bytes that `encode` gave."""
    if state_format == "bf16":
        return stored.view(torch.bfloat16).to(torch.float32)
    dtype, _ = _SCALED[state_format]
    # A copy, because torch calls a single head contiguous at any stride.
    scales = stored[..., :FLOAT_BYTES].clone(memory_format=torch.contiguous_format)
    scales = scales.view(torch.float32)
    return stored[..., FLOAT_BYTES:].view(dtype).to(torch.float32).mul_(scales)
