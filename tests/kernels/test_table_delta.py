from importlib import import_module

import pytest
import torch
from hybrid_blocks.kernels import Backend, apply_table_delta
from hybrid_blocks.kernels.launch_queue import queue_of
from hybrid_blocks.kernels.table_delta import Delta
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import BACKENDS, DEVICE, FAST, FEW, int32s, running

ROWS, COLUMNS = 5, 400


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Draw (row, start, length) runs that share no entry."""
    drawn = []
    for row in range(ROWS):
        bounds = sorted(draw(st.lists(st.integers(0, COLUMNS), max_size=6, unique=True)))
        drawn += [(row, a, b - a) for a, b in zip(bounds[::2], bounds[1::2], strict=False)]
        if draw(st.booleans()):
            drawn.append((row, draw(st.integers(0, COLUMNS)), 0))
    return draw(st.permutations(drawn))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("on_device", [False, True])
def test_each_run_lands_in_its_row_and_nothing_else_changes(
    backend: Backend, *, on_device: bool
) -> None:
    @FEW
    @given(runs())
    def check(drawn: list[tuple[int, int, int]]) -> None:
        expected = torch.full((ROWS, COLUMNS + 3), -7, dtype=torch.int32)
        offsets, entry = [0], 100
        for row, start, length in drawn:
            expected[row, start : start + length] = torch.arange(entry, entry + length)
            entry += length
            offsets.append(entry - 100)
        lists = (
            int32s(*(row for row, _, _ in drawn)),
            int32s(*(start for _, start, _ in drawn)),
            int32s(*offsets),
            int32s(*range(100, entry)),
        )
        table = torch.full((ROWS, COLUMNS + 3), -7, dtype=torch.int32, device=DEVICE)
        placed = [torch.tensor(ids, device=DEVICE) if on_device else ids for ids in lists]
        with running(backend):
            apply_table_delta(table[:, :COLUMNS], *placed, backend=backend)
        assert torch.equal(table.cpu(), expected)

    check()


@pytest.mark.parametrize("backend", FAST)
def test_entries_outside_the_table_are_skipped_on_the_device(backend: Backend) -> None:
    table = torch.zeros(2, 3, dtype=torch.int32, device=DEVICE)
    lists = (int32s(0, 5, 1), int32s(2, 0, -1), int32s(0, 2, 3, 5), int32s(1, 2, 3, 4, 5))
    with running(backend):
        run = import_module(f"hybrid_blocks.kernels.table_delta.{backend}")
        delta = Delta(*(torch.tensor(ids, device=DEVICE) for ids in lists))
        run.apply_table_delta(queue_of(DEVICE, None), table, delta)
    assert table.tolist() == [[0, 0, 1], [5, 0, 0]]


def test_deltas_that_do_not_fit_are_refused_with_the_run() -> None:
    table = torch.zeros(4, 8, dtype=torch.int32, device=DEVICE)
    one = int32s(0, 1)
    with pytest.raises(IndexError, match="run 0 covers columns 7 to 9 of a table with 8"):
        apply_table_delta(table, int32s(0), int32s(7), int32s(0, 2), int32s(1, 2))
    with pytest.raises(IndexError, match=r"rows\[0\] is 4"):
        apply_table_delta(table, int32s(4), int32s(0), one, int32s(1))
    with pytest.raises(ValueError, match="runs 1 and 0 write the same entries of row 2"):
        apply_table_delta(table, int32s(2, 2), int32s(3, 2), int32s(0, 1, 3), int32s(1, 2, 3))
    with pytest.raises(ValueError, match="offsets must ascend from 0 to the 1 block_ids"):
        apply_table_delta(table, int32s(0), int32s(0), int32s(0, 2), int32s(1))
    with pytest.raises(ValueError, match="2 rows need 2 starts and 3 offsets, got 1 and 2"):
        apply_table_delta(table, int32s(0, 1), int32s(0), one, int32s(1))
    with pytest.raises(TypeError, match="table must be int32, got int64"):
        apply_table_delta(table.long(), int32s(0), int32s(0), one, int32s(1))
    with pytest.raises(ValueError, match="table rows must be contiguous"):
        apply_table_delta(table.T, int32s(0), int32s(0), one, int32s(1))
