import pytest
import torch
from hybrid_blocks.kernels import Backend, BlockTensors, zero_blocks
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import BACKENDS, DEVICE, FEW, OddGroup, int32s, odd_groups, raw, running


@st.composite
def clearings(draw: st.DrawFn) -> tuple[OddGroup, list[int]]:
    group = draw(odd_groups())
    return group, draw(st.lists(st.integers(0, group.num_blocks - 1), max_size=5))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("max_sms", [None, 1])
def test_listed_blocks_become_zero_and_no_other_byte_changes(
    backend: Backend, max_sms: int | None
) -> None:
    @FEW
    @given(clearings())
    def check(case: tuple[OddGroup, list[int]]) -> None:
        group, ids = case
        expected = group.twin()
        for tensor in expected.tensors:
            for block in ids:
                tensor.select(0, block).zero_()
        with running(backend):
            zero_blocks(group.blocks, int32s(*ids), backend=backend, max_sms=max_sms)
        assert group.same_bytes(expected)

    check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_poisoned_floats_are_cleared_to_plain_zero(backend: Backend) -> None:
    state = torch.full((3, 50), torch.nan, device=DEVICE)
    with running(backend):
        zero_blocks(BlockTensors([state]), int32s(1, 1), backend=backend)
    assert not raw(state[1]).any()
    assert state[0].isnan().all()
    assert state[2].isnan().all()


def test_an_id_out_of_bounds_is_named() -> None:
    with pytest.raises(IndexError, match=r"ids\[0\] is 3"):
        zero_blocks(BlockTensors([torch.zeros(3, 1, device=DEVICE)]), int32s(3))
