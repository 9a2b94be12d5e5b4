import pytest
import torch
from hybrid_blocks.kernels import PAD_SLOT, Backend, slot_mapping
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import BACKENDS, DEVICE, FEW, running


def tensor(values: list[int] | list[list[int]], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize("backend", BACKENDS)
def test_slots_follow_the_block_table(backend: Backend) -> None:
    @FEW
    @given(
        st.lists(st.tuples(st.integers(0, 40), st.integers(0, 90)), max_size=9),
        st.sampled_from((1, 7, 16, 528)),
        st.integers(0, 300),
        st.randoms(use_true_random=False),
    )
    def check(
        requests: list[tuple[int, int]], block_size: int, padding: int, random: "object"
    ) -> None:
        rows, columns = len(requests), 6
        table = [[random.randrange(1 << 20) for _ in range(columns)] for _ in requests]  # type: ignore[attr-defined]
        starts, positions, slots = [0], [], []
        for row, (length, computed) in zip(table, requests, strict=True):
            for position in range(computed, computed + length):
                column, inside = divmod(position, block_size)
                known = column < columns
                positions.append(position)
                slots.append(row[column] * block_size + inside if known else PAD_SLOT)
            starts.append(len(positions))
        out = torch.full((len(positions) + padding,), 123, dtype=torch.int64, device=DEVICE)
        block_table = torch.empty(rows, columns + 2, dtype=torch.int32, device=DEVICE)[:, :columns]
        block_table.copy_(tensor(table, torch.int32).view(rows, columns))
        with running(backend):
            slot_mapping(
                block_table,
                tensor(starts, torch.int32),
                tensor(positions, torch.int64),
                block_size,
                out,
                backend=backend,
            )
        assert out.tolist() == slots + [PAD_SLOT] * padding

    check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_slots_beyond_32_bits_are_exact(backend: Backend) -> None:
    table = tensor([2**31 - 1], torch.int32).view(1, 1)
    out = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    with running(backend):
        slot_mapping(
            table, tensor([0, 1], torch.int32), tensor([5], torch.int64), 16, out, backend=backend
        )
    assert out.tolist() == [(2**31 - 1) * 16 + 5]


def test_batches_that_do_not_fit_are_refused() -> None:
    table = torch.zeros(2, 3, dtype=torch.int32, device=DEVICE)
    starts, positions = tensor([0, 1, 2], torch.int32), tensor([0, 0], torch.int64)
    out = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    with pytest.raises(ValueError, match="query_start has 2 entries; 2 requests need 3"):
        slot_mapping(table, starts[:2], positions, 16, out)
    with pytest.raises(ValueError, match="out has 1 entries for 2 tokens"):
        slot_mapping(table, starts, positions, 16, out[:1])
    with pytest.raises(TypeError, match="positions must be int64, got int32"):
        slot_mapping(table, starts, positions.int(), 16, out)
    with pytest.raises(ValueError, match="block_size is 0"):
        slot_mapping(table, starts, positions, 0, out)
    with pytest.raises(ValueError, match="block_table must have 2 dimension"):
        slot_mapping(table.T, starts, positions, 16, out)
