"""The states of a layer are copied between slots by every version, and no other byte changes."""

from functools import partial

import pytest
import torch
from hybrid_blocks.kernels import Backend, copy_blocks
from hybrid_blocks.vllm.worker import kernel_copies
from kernel_cases import BACKENDS, DEVICE, int32s, raw, running

SLAB_BYTES = 9 * 1024
NUM_SLOTS = 7
WINDOWS = {"tokens first": (3, 40), "channels first": (40, 3), "with drafts": (7, 40)}
"""Shapes of a convolution's state, by what its first dimension counts; drafts add columns."""


def layer(arena: torch.Tensor, window: tuple[int, int], dtype: torch.dtype) -> list[torch.Tensor]:
    """Return the tensors of a layer between others' bytes in each slab."""
    tensors, at = [], 256
    for shape, kind in ((window, torch.bfloat16), ((2, 16, 32), dtype)):
        size = torch.Size(shape).numel() * kind.itemsize
        tensors.append(arena[:, at : at + size].view(kind).unflatten(1, shape))
        at += size + 128
    return tensors


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", WINDOWS)
def test_states_of_a_layer_are_copied_and_no_other_byte(
    backend: Backend, dtype: torch.dtype, window: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_copies, "copy_blocks", partial(copy_blocks, backend=backend))
    arena = torch.randint(0, 256, (NUM_SLOTS, SLAB_BYTES), dtype=torch.uint8, device=DEVICE)
    expected = arena.clone()
    caches = layer(arena, WINDOWS[window], dtype)
    with running(backend):
        for src, dst in (([1], [4]), ([2, 1], [6, 3])):
            for tensor in layer(expected, WINDOWS[window], dtype):
                tensor[dst] = tensor[src].clone()
            kernel_copies.copy_layer(caches, int32s(*src), int32s(*dst))
            assert torch.equal(raw(arena), raw(expected))
    found = kernel_copies._known()[caches[0]]["layer"]
    assert not found.reason
    assert bool(found.group.launches) == (backend == "cupy")
