import pytest
import torch
from hybrid_blocks.kernels import Backend, move_slabs
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import BACKENDS, DEVICE, FEW, int32s, running

pairs = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("max_sms", [None, 2])
def test_slabs_move_in_list_order(backend: Backend, max_sms: int | None) -> None:
    @FEW
    @given(pairs, st.sampled_from((1, 37, 4096, 8200, 20001)), st.integers(0, 99))
    def check(moves: list[tuple[int, int]], slab_bytes: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        arena = torch.randint(0, 256, (5 * slab_bytes,), dtype=torch.uint8, generator=generator)
        expected = arena.clone().view(5, slab_bytes)
        for source, target in moves:
            expected[target] = expected[source].clone()
        arena = arena.to(DEVICE)
        src, dst = int32s(*(s for s, _ in moves)), int32s(*(t for _, t in moves))
        with running(backend):
            move_slabs(arena, slab_bytes, src, dst, backend=backend, max_sms=max_sms)
        assert torch.equal(arena.cpu(), expected.view(-1))

    check()


def test_an_arena_that_moved_is_described_anew() -> None:
    arena = torch.zeros(128, dtype=torch.uint8, device=DEVICE)
    move_slabs(arena, 64, int32s(0), int32s(1))
    arena.data = torch.arange(128, dtype=torch.uint8, device=DEVICE)
    move_slabs(arena, 64, int32s(0), int32s(1))
    assert torch.equal(arena[64:], arena[:64])
    assert arena[64:].any()


def test_arenas_and_lists_that_do_not_fit_are_refused() -> None:
    arena = torch.zeros(100, dtype=torch.uint8, device=DEVICE)
    with pytest.raises(ValueError, match="slab_bytes is 30; it must divide 100 arena bytes"):
        move_slabs(arena, 30, int32s(0), int32s(1))
    with pytest.raises(IndexError, match=r"dst\[0\] is 4"):
        move_slabs(arena, 25, int32s(0), int32s(4))
    with pytest.raises(TypeError, match="arena must be uint8, got float32"):
        move_slabs(arena.float(), 25, int32s(0), int32s(1))
    with pytest.raises(ValueError, match="arena must be contiguous"):
        move_slabs(arena[::2], 25, int32s(0), int32s(1))
    with pytest.raises(ValueError, match="src has 1 ids, dst has 2"):
        move_slabs(arena, 25, int32s(0), int32s(1, 2))
