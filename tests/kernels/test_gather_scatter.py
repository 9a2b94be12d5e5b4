import pytest
import torch
from hybrid_blocks.kernels import (
    Backend,
    BlockTensors,
    gather_blocks,
    gather_scatter,
    scatter_blocks,
)
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import BACKENDS, DEVICE, FAST, FEW, OddGroup, int32s, odd_groups, raw, running

POISON = 0xFF


def staging_for(group: BlockTensors, records: int, offset: int = 0) -> torch.Tensor:
    length = offset + records * group.record_bytes
    return torch.full((length,), POISON, dtype=torch.uint8, device=DEVICE)[offset:]


@st.composite
def gathers(draw: st.DrawFn) -> tuple[OddGroup, list[int], int]:
    group = draw(odd_groups())
    ids = draw(st.lists(st.integers(0, group.num_blocks - 1), max_size=8))
    return group, ids, draw(st.sampled_from((0, 1, 4)))


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("max_sms", [None, 3])
def test_records_are_the_same_as_those_of_naive(backend: Backend, max_sms: int | None) -> None:
    @FEW
    @given(gathers())
    def check(case: tuple[OddGroup, list[int], int]) -> None:
        group, ids, offset = case
        expected = staging_for(group.blocks, len(ids))
        got = staging_for(group.blocks, len(ids) + 1, offset)
        gather_blocks(group.blocks, int32s(*ids), expected, backend="naive")
        with running(backend):
            gather_blocks(group.blocks, int32s(*ids), got, backend=backend, max_sms=max_sms)
        assert torch.equal(got[: len(expected)], expected)
        assert (got[len(expected) :] == POISON).all()

    check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_list_of_several_launches_fills_one_record_after_another(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = BlockTensors([torch.randn(9, 40, device=DEVICE)])
    ids = int32s(8, 1, 5, 0, 7, 3, 2)
    whole, parts = staging_for(group, len(ids)), staging_for(group, len(ids))
    gather_blocks(group, ids, whole, backend="naive")
    monkeypatch.setattr(gather_scatter, "MAX_LIST", 3)
    with running(backend):
        gather_blocks(group, ids, parts, backend=backend)
    assert torch.equal(parts, whole)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_gathered_scatters_back_to_the_same_state(backend: Backend) -> None:
    @FEW
    @given(odd_groups(), st.randoms(use_true_random=False), st.sampled_from((0, 1, 4)))
    def check(group: OddGroup, random: object, offset: int) -> None:
        ids = list(range(group.num_blocks))
        random.shuffle(ids)  # type: ignore[attr-defined]
        ids = ids[: (len(ids) + 1) // 2]
        staging = staging_for(group.blocks, len(ids), offset)
        restored = group.twin()
        with running(backend):
            gather_blocks(group.blocks, int32s(*ids), staging, backend=backend)
            for tensor in restored.tensors:
                for block in ids:
                    tensor.select(0, block).zero_()
            scatter_blocks(restored.blocks, int32s(*ids), staging, backend=backend)
        assert restored.same_bytes(group)

    check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_record_holds_the_segments_in_order_and_the_gaps_stay(backend: Backend) -> None:
    conv = torch.arange(12, dtype=torch.uint8, device=DEVICE).view(4, 3)
    state = torch.arange(8, dtype=torch.int16, device=DEVICE).view(4, 2)
    group = BlockTensors([conv, state])
    staging = staging_for(group, 2)
    with running(backend):
        gather_blocks(group, int32s(3, 1), staging, backend=backend)
    first, second = staging.view(2, 256).tolist()
    assert first[:3] == [9, 10, 11]
    assert first[128:132] == [6, 0, 7, 0]
    assert second[:3] == [3, 4, 5]
    assert set(first[3:128] + first[132:]) == {POISON}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_block_may_be_gathered_twice(backend: Backend) -> None:
    state = torch.randn(3, 100, device=DEVICE)
    group = BlockTensors([state])
    staging = staging_for(group, 2)
    with running(backend):
        gather_blocks(group, int32s(1, 1), staging, backend=backend)
    records = staging.view(2, -1)
    assert torch.equal(records[0], records[1])
    assert torch.equal(records[0][:400], raw(state[1]))


def test_staging_buffers_that_cannot_work_are_refused() -> None:
    state = torch.zeros(4, 8, device=DEVICE)
    group = BlockTensors([state])
    with pytest.raises(ValueError, match="staging has 255 bytes; 2 records of 128 bytes need 256"):
        gather_blocks(group, int32s(0, 1), staging_for(group, 2)[1:])
    with pytest.raises(TypeError, match="staging must be uint8, got float32"):
        gather_blocks(group, int32s(0), torch.zeros(128, device=DEVICE))
    with pytest.raises(ValueError, match="staging must be contiguous"):
        gather_blocks(group, int32s(0), staging_for(group, 4)[::2])
    with pytest.raises(ValueError, match="staging lies inside the group's tensors"):
        gather_blocks(group, int32s(0), state.view(-1).view(torch.uint8))
    with pytest.raises(ValueError, match="ids holds block 1 twice"):
        scatter_blocks(group, int32s(1, 1), staging_for(group, 2))
