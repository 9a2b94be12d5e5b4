"""Recurrent states in fewer bytes, by torch: the same bytes as the Rust codec of offload.

A head ``x`` of float32 numbers with largest magnitude ``a`` comes back as ``y``, up to a relative
2^-21:

- ``bf16``: ``|y - x| <= 2^-8 |x|``
- ``int8``: ``|y - x| <= a / 254``
- ``fp8`` (e4m3): ``|y - x| <= max(2^-4 |x|, 2^-10 a / 448)``

The 8-bit formats keep a float32 scale before each head. A head with ``a < 2^-100`` comes back as
zeros, and one that holds an infinity or a NaN as NaN throughout. Under ``bf16`` a NaN stays a NaN;
its other bits may differ from the Rust codec's.
"""

from typing import Final

import torch

from hybrid_blocks.model.layer import StateFormat

SMALLEST_HEAD: Final = 2.0**-100
"""A head whose largest magnitude is below this is stored as zeros."""

SCALE_BYTES: Final = 4
"""Bytes of a head's scale."""

_SCALED: Final = {"int8": (torch.int8, 127.0), "fp8": (torch.float8_e4m3fn, 448.0)}
"""Numbers of the 8-bit formats, and the magnitude that a head's largest one is mapped onto."""


def encode(states: torch.Tensor, state_format: StateFormat) -> torch.Tensor:
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


def decode(stored: torch.Tensor, state_format: StateFormat) -> torch.Tensor:
    """Return the float32 heads of bytes that `encode` gave."""
    if state_format == "bf16":
        return stored.view(torch.bfloat16).to(torch.float32)
    dtype, _ = _SCALED[state_format]
    scales = stored[..., :SCALE_BYTES].contiguous().view(torch.float32)
    return stored[..., SCALE_BYTES:].view(dtype).to(torch.float32).mul_(scales)
