"""Gathered and scattered blocks have the bytes of the reference."""

from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hybrid_blocks.kernels import (
    Backend,
    BlockTensors,
    gather_blocks,
    gather_scatter,
    scatter_blocks,
)
from hybrid_blocks.kernels.backend import implementation
from hybrid_blocks.kernels.gather_scatter.records import Records
from hybrid_blocks.kernels.launch_queue import queue_of
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import BACKENDS, DEVICE, FEW, Int32s, OddGroup, int32s, odd_groups, raw, running

POISON = 0xFF
# On a device the copy engine serves pinned memory alone, in on_device.py.
WITH_ENGINE: tuple[Backend, ...] = (*BACKENDS, "copy_engine") if DEVICE.type == "cpu" else BACKENDS


def buffer(length: int) -> torch.Tensor:
    return torch.full((length,), POISON, dtype=torch.uint8, device=DEVICE)


@st.composite
def transfers(draw: st.DrawFn, *, unique: bool) -> tuple[OddGroup, Int32s, Int32s, int, int]:
    """Return a group, ids, places, the granule and the byte at which the staging begins."""
    group = draw(odd_groups())
    any_block = st.integers(0, group.num_blocks - 1)
    ids = draw(st.lists(any_block, max_size=5, unique=unique))
    granule = draw(st.sampled_from((1, 48, 1000, 4096)))
    span = -(-group.blocks.record_bytes // granule)
    places = draw(st.permutations(range(8)))[: len(ids)]
    return group, int32s(*ids), int32s(*(p * span for p in places)), granule, draw(offsets)


offsets = st.sampled_from((0, 1, 4, 16))


def staging_for(case: tuple[OddGroup, Int32s, Int32s, int, int]) -> torch.Tensor:
    group, _, _, granule, offset = case
    span = -(-group.blocks.record_bytes // granule) * granule
    return buffer(offset + 8 * span)[offset:]


@pytest.mark.parametrize("max_sms", [None, 3])
@pytest.mark.parametrize("backend", WITH_ENGINE)
def test_a_gather_equals_torch_indexing_and_writes_no_other_byte(
    backend: Backend, max_sms: int | None
) -> None:
    @FEW
    @given(transfers(unique=False))
    def check(case: tuple[OddGroup, Int32s, Int32s, int, int]) -> None:
        group, ids, places, granule, _ = case
        got, expected = staging_for(case), staging_for(case)
        for block, place in zip(ids.tolist(), places.tolist(), strict=True):
            record = torch.cat([run[block] for run in group.blocks.byte_views()])
            expected[place * granule : place * granule + len(record)] = record
        with running(backend):
            gather_blocks(group.blocks, ids, got, places, granule, backend=backend, max_sms=max_sms)
        assert torch.equal(got, expected)

    check()


@pytest.mark.parametrize("backend", WITH_ENGINE)
def test_what_was_gathered_scatters_back_to_the_same_state(backend: Backend) -> None:
    @FEW
    @given(transfers(unique=True))
    def check(case: tuple[OddGroup, Int32s, Int32s, int, int]) -> None:
        group, ids, places, granule, _ = case
        staging, restored = staging_for(case), group.twin()
        with running(backend):
            gather_blocks(group.blocks, ids, staging, places, granule, backend=backend)
            for tensor in restored.tensors:
                for block in ids.tolist():
                    tensor.select(0, block).zero_()
            scatter_blocks(restored.blocks, ids, staging, places, granule, backend=backend)
        assert restored.same_bytes(group)

    check()


@pytest.mark.parametrize("direction", [gather_blocks, scatter_blocks])
def test_tensors_on_the_host_reach_a_backend_as_arrays(direction: Any) -> None:
    """A backend takes a tensor for one on the device, and its address for one there."""
    group = BlockTensors([torch.zeros(4, 40, device=DEVICE)])
    ids, places = (torch.tensor(ids, dtype=torch.int32) for ids in ([3, 1], [0, 3]))
    name = direction.__name__
    with mock.patch.object(implementation(gather_scatter.__name__, DEVICE, "naive"), name) as ran:
        direction(group, ids, buffer(6 * 64), places, 64, backend="naive")
    _, _, told_ids, _, told_places, _ = ran.call_args.args
    assert type(told_ids) is type(told_places) is np.ndarray
    assert (told_ids.tolist(), told_places.tolist()) == ([3, 1], [0, 3])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("direction", ["gather", "scatter"])
def test_a_list_of_several_launches_keeps_each_pair(
    backend: Backend, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = torch.randn(9, 40, device=DEVICE)
    group, before = BlockTensors([state]), state.clone()
    ids, places = int32s(8, 1, 5, 0, 7, 3, 2), int32s(6, 0, 9, 3, 12, 15, 18)
    staging = buffer(21 * 64)
    monkeypatch.setattr(gather_scatter, "MAX_LIST", 3)
    with running(backend):
        if direction == "gather":
            gather_blocks(group, ids, staging, places, 64, backend=backend)
            rows = staging.view(7, 192)[places // 3, :160]
            assert torch.equal(rows, before[ids].view(torch.uint8))
        else:
            gather_blocks(group, ids, staging, places, 64, backend="naive")
            state.zero_()
            scatter_blocks(group, ids, staging, places, 64, backend=backend)
            assert torch.equal(state[ids], before[ids])
            assert not state[[4, 6]].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_record_may_be_scattered_to_several_blocks(backend: Backend) -> None:
    state = torch.zeros(3, 100, device=DEVICE)
    record = torch.randn(100, device=DEVICE)
    with running(backend):
        scatter_blocks(
            BlockTensors([state]), int32s(2, 0), raw(record), int32s(0, 0), 1, backend=backend
        )
    assert torch.equal(state[0], record)
    assert torch.equal(state[2], record)
    assert not state[1].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("direction", ["gather", "scatter"])
def test_padding_of_lists_on_the_device_is_skipped(backend: Backend, direction: str) -> None:
    """An id or a place out of bounds on either side: its pair does nothing."""
    state = torch.arange(40, dtype=torch.uint8, device=DEVICE).view(4, 10)
    group, staging = BlockTensors([state]), buffer(40)
    ids = torch.tensor([1, -1, 4, 2, 3], dtype=torch.int32, device=DEVICE)
    places = torch.tensor([3, 0, 1, -1, 4], dtype=torch.int32, device=DEVICE)
    expected, kept = staging.clone(), state.clone()
    if direction == "gather":
        expected[30:] = state[1]
    else:
        kept[1] = POISON
    with running(backend):
        run = implementation(gather_scatter.__name__, DEVICE, backend)
        move = getattr(run, f"{direction}_blocks")
        move(queue_of(DEVICE, None), group, ids, Records(group, staging, 10), places, None)
    assert torch.equal(staging, expected)
    assert torch.equal(state, kept)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="imports Triton for its interpreter")
@pytest.mark.parametrize(
    ("granule", "begin", "width"), [(4096, 0, 16), (1000, 0, 8), (6, 0, 2), (4096, 4, 4)]
)
def test_tritons_accesses_are_as_wide_as_places_allow(granule: int, begin: int, width: int) -> None:
    """Triton's interpreter would not see an access that is too wide; a device refuses it."""
    group = BlockTensors([torch.zeros(4, 64, device=DEVICE)])
    records = Records(group, buffer(8192)[begin:], granule)
    with running("triton"):
        run = implementation(gather_scatter.__name__, DEVICE, "triton")
        with mock.patch.object(run, "_move_records", mock.MagicMock()) as kernel:
            run.gather_blocks(queue_of(DEVICE, None), group, int32s(0), records, int32s(1), None)
    assert kernel.__getitem__.return_value.call_args.kwargs["WIDTH"] == width


def test_the_versions_take_a_place_beyond_four_gib() -> None:
    """The byte of a record is a product of 64 bits; only its address is computed."""
    from hybrid_blocks.kernels.gather_scatter import copy_engine  # noqa: PLC0415

    group = BlockTensors([torch.zeros(4, 8, device=DEVICE)])
    records = Records(group, buffer(64), 4096)
    ids, places = int32s(1), int32s(1 << 30)
    _, in_records, _ = copy_engine._runs(queue_of(DEVICE, None), group, ids, records, places)
    assert in_records.tolist() == [records.staging.data_ptr() + (1 << 42)]


def test_records_and_buffers_that_cannot_work_are_refused() -> None:
    state = torch.zeros(4, 8, device=DEVICE)
    group = BlockTensors([state])
    places = int32s(0, 2)
    wide: Any = places.astype(np.int64)

    def gather(staging: torch.Tensor, at: Int32s = places, granule: int = 16) -> None:
        gather_blocks(group, int32s(0, 1), staging, at, granule)

    gather(buffer(64))
    with pytest.raises(IndexError, match=r"places\[1\] is 2: a record of 32 bytes from byte 32 "):
        gather(buffer(63))
    with pytest.raises(IndexError, match=r"places\[0\] is -1: "):
        gather(buffer(63), int32s(-1, 1))
    with pytest.raises(IndexError, match="does not fit 31 bytes"):
        gather(buffer(31))
    with pytest.raises(ValueError, match="places 1 and 2 hold records of 32 bytes that overlap"):
        gather(buffer(64), int32s(2, 1))
    gather(buffer(64), int32s(32, 0), 1)
    with pytest.raises(ValueError, match="places 1 and 32 hold records of 32 bytes that overlap"):
        gather(buffer(64), int32s(32, 1), 1)
    with pytest.raises(ValueError, match="there are 2 ids and 1 places"):
        gather(buffer(64), int32s(0))
    with pytest.raises(ValueError, match="granule is 0"):
        gather(buffer(64), granule=0)
    with pytest.raises(TypeError, match="staging must be uint8, got float32"):
        gather(torch.zeros(128, device=DEVICE))
    with pytest.raises(TypeError, match="places must be an int32 array, got int64"):
        gather(buffer(64), wide)
    with pytest.raises(ValueError, match="staging must be contiguous"):
        gather(buffer(128)[::2])
    with pytest.raises(ValueError, match="staging lies inside the group's tensors"):
        gather(state.view(-1).view(torch.uint8))
    with pytest.raises(IndexError, match=r"ids\[1\] is 4"):
        gather_blocks(group, int32s(0, 4), buffer(64), places, 16)
    with pytest.raises(ValueError, match="ids holds block 1 twice"):
        scatter_blocks(group, int32s(1, 1), buffer(64), places, 16)


def test_blocks_that_overlap_in_memory_are_not_scattered_together() -> None:
    memory = torch.zeros(64, device=DEVICE)
    group = BlockTensors([memory.as_strided((8, 16), (4, 1))])
    with pytest.raises(ValueError, match="blocks 3 and 1 overlap in memory"):
        scatter_blocks(group, int32s(1, 3), buffer(128), int32s(0, 1), 64)
