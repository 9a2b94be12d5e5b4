"""The body of vLLM's fused copies of Mamba states, over addresses that are at hand.

vLLM reads the addresses from block tables; the bytes are moved by the same function, in the same
tiles (``vllm/v1/worker/mamba_utils.py``). Needs vLLM.
"""

import torch
import triton
import triton.language as tl
from vllm.v1.worker.mamba_utils import _TEMPORAL_TILES, _memcpy_u64_tiled

_WORDS = 1024  # COPY_BLOCK_SIZE where vLLM launches it


@triton.jit
def _copy_all(sources, targets, sizes, tiles: tl.constexpr, words: tl.constexpr):  # type: ignore[no-untyped-def]
    which = tl.program_id(0)
    source = tl.load(sources + which)
    target = tl.load(targets + which)
    size = tl.load(sizes + which)
    _memcpy_u64_tiled(source, target, size, tl.program_id(1), words, tiles)


def copy_all(sources: torch.Tensor, targets: torch.Tensor, sizes: torch.Tensor) -> None:
    """Copy ``sizes[i]`` bytes from address ``sources[i]`` to ``targets[i]``; int64, on the GPU."""
    _copy_all[(len(sizes), _TEMPORAL_TILES)](sources, targets, sizes, _TEMPORAL_TILES, _WORDS)
