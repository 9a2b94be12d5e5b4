"""One launch moves the copies of all groups."""

from unittest import mock

import numpy as np
import pytest
import torch
from cuda_on_cpu import fake_driver
from hybrid_blocks.kernels import Backend, BlockTensors, copy_blocks
from hybrid_blocks.kernels.ids import FEW as FEW_IDS
from hybrid_blocks.kernels.ids import IdChecks
from hybrid_blocks.kernels.moves import Moves, Order, in_order
from hybrid_blocks.kernels.upload import MAX_LIST
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import BACKENDS, DEVICE, FEW, MANY, Int32s, int32s, running

IDS = 7
pairs = st.lists(st.tuples(st.integers(0, IDS - 1), st.integers(0, IDS - 1)), max_size=14)
on_cpu = pytest.mark.skipif(DEVICE.type != "cpu", reason="counts the launches of the fake driver")


def state_after(moves: list[tuple[int, int]], order: Order, blocks: int = IDS) -> list[int]:
    """Return what each block holds in the end, by the definition of the order."""
    held = list(range(blocks))
    before = list(held)
    for source, target in moves:
        held[target] = (held if order == "list" else before)[source]
    return held


def carry_out(src: list[int], dst: list[int], blocks: int) -> list[int]:
    held = list(range(blocks))
    for source, target in zip(src, dst, strict=True):
        if source < 0:
            held[-1 - source], held[target] = held[target], held[-1 - source]
        else:
            held[target] = held[source]
    return held


@st.composite
def moves_of(draw: st.DrawFn) -> tuple[list[tuple[int, int]], Order]:
    order: Order = draw(st.sampled_from(("list", "gather_then_scatter")))
    moves = draw(pairs)
    if order != "list":
        moves = list({target: (source, target) for source, target in moves}.values())
    return moves, order


def lists(moves: list[tuple[int, int]]) -> tuple[Int32s, Int32s]:
    return int32s(*(s for s, _ in moves)), int32s(*(t for _, t in moves))


@MANY
@given(moves_of(), st.randoms(use_true_random=False))
def test_what_is_launched_ends_as_the_list_says_whatever_the_order_of_its_free_part(
    case: tuple[list[tuple[int, int]], Order], random: object
) -> None:
    moves, order = case
    src, dst, ordered = in_order(*lists(moves), order)
    free = list(range(ordered, len(src)))
    random.shuffle(free)  # type: ignore[attr-defined]
    at = [*range(ordered), *free]
    assert carry_out(src[at].tolist(), dst[at].tolist(), IDS) == state_after(moves, order)
    touched = set(src[ordered:].tolist()) & set(dst.tolist())
    assert not touched, "a free source is written by nobody"
    assert len(set(dst[ordered:].tolist())) == len(free)


def test_only_pairs_that_meet_are_ordered() -> None:
    src, dst, ordered = in_order(int32s(8, 0, 1, 20, 5), int32s(9, 1, 2, 21, 5), "list")
    assert ordered == 2
    assert list(zip(src.tolist(), dst.tolist(), strict=True)) == [(0, 1), (1, 2), (8, 9), (20, 21)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("max_sms", [None, 1])
def test_chains_and_rings_equal_a_sequential_model(
    backend: Backend, width: int, max_sms: int | None
) -> None:
    @FEW
    @given(moves_of(), st.sampled_from((1, 33, 513, 4099)))
    def check(case: tuple[list[tuple[int, int]], Order], units: int) -> None:
        moves, order = case
        size = width * units
        stride = size + width
        arena = torch.randint(0, 256, (IDS * stride + 64,), dtype=torch.uint8, device=DEVICE)
        start = -arena.data_ptr() % 16 + width % 16
        view = arena.as_strided((IDS, size), (stride, 1), start)
        before = view.clone()
        outside = arena.clone()
        with running(backend):
            group = BlockTensors([view])
            copy_blocks(group, *lists(moves), order=order, backend=backend, max_sms=max_sms)
        assert torch.equal(view, before[state_after(moves, order)])
        view.copy_(before)
        assert torch.equal(arena, outside), "the bytes between blocks stay"

    check()


@on_cpu
@pytest.mark.parametrize("count", [2, 5, 64, 300, MAX_LIST, MAX_LIST + 100])
@pytest.mark.parametrize("order", ["list", "gather_then_scatter"])
def test_a_compaction_of_any_length_takes_few_launches(count: int, order: Order) -> None:
    arena = torch.arange((count + 1) * 16, dtype=torch.int32).view(torch.uint8)
    expected = arena.view(count + 1, 64).clone()
    expected[:count] = expected[1:].clone()
    ids = np.arange(count, dtype=np.int32)
    before = fake_driver().count("launches")
    with running("cupy"):
        slabs = BlockTensors([arena.view(count + 1, 64)])
        copy_blocks(slabs, ids + np.int32(1), ids, order=order, backend="cupy")
    assert fake_driver().count("launches") == before - (-count // MAX_LIST)
    assert torch.equal(arena.view(count + 1, 64), expected)


def test_every_part_of_a_long_chain_keeps_its_order() -> None:
    ids = np.arange(MAX_LIST + 10, dtype=np.int32)
    checks = IdChecks(len(ids) + 1)
    moves = Moves(ids + np.int32(1), ids, checks, order="list", device=DEVICE)
    assert [(len(src), it) for src, _, it in moves.launches()] == [(MAX_LIST, MAX_LIST), (10, 10)]


@on_cpu
@pytest.mark.parametrize(
    "count", [0, 1, FEW_IDS, FEW_IDS + 1, 255, 256, 257, 4095, MAX_LIST, MAX_LIST + 1, 1 << 20]
)
def test_lists_of_every_length_arrive(count: int) -> None:
    blocks = 2 * count + 3
    state = torch.arange(blocks, dtype=torch.int64).view(blocks, 1)
    expected = state.clone()
    order = np.random.default_rng(count).permutation(blocks).astype(np.int32)
    src, dst = order[:count], order[count : 2 * count]
    expected[dst.astype(np.int64)] = expected[src.astype(np.int64)]
    fake = fake_driver()
    before = fake.count("launches")
    with running("cupy"), mock.patch.object(fake, "upload", wraps=fake.upload) as upload:
        copy_blocks(BlockTensors([state]), src, dst, backend="cupy")
    assert fake.count("launches") - before == -(-count // MAX_LIST)
    # Up to 256 pairs travel in the parameters of a launch.
    parts = [min(MAX_LIST, count - at) for at in range(0, count, MAX_LIST)]
    assert upload.call_count == sum(part > 256 for part in parts)
    assert torch.equal(state, expected)


@pytest.mark.parametrize("count", [3, FEW_IDS, FEW_IDS + 1, 2000])
def test_checks_find_what_a_set_finds(count: int) -> None:
    rng = np.random.default_rng(count)
    checks = IdChecks(3 * count)
    for _ in range(20):
        src, dst = (rng.integers(0, 3 * count, count).astype(np.int32) for _ in range(2))
        if rng.random() < 0.7:
            src, dst = rng.permutation(3 * count).astype(np.int32)[: 2 * count].reshape(2, count)
            if rng.random() < 0.5:
                dst[rng.integers(count)] = (src, dst)[rng.integers(2)][rng.integers(count)]
        apart = len(set(dst.tolist())) == count and not set(src.tolist()) & set(dst.tolist())
        assert checks.pairs(src, dst) == apart


def test_checks_outlive_the_numbers_of_their_stamps() -> None:
    checks = IdChecks(200)
    ids = np.arange(100, dtype=np.int32)
    assert checks.pairs(ids, ids + np.int32(100))
    checks._next = np.iinfo(np.int32).max - 50
    assert checks.pairs(ids, ids + np.int32(100))
    assert checks._next < 1000
    assert not checks.pairs(ids, ids[::-1].copy())


@pytest.mark.parametrize("count", [1, FEW_IDS + 1])
@pytest.mark.parametrize("bad", [-1, 100, -(2**31), 2**31 - 1])
def test_the_first_id_out_of_bounds_is_named_in_short_and_long_lists(count: int, bad: int) -> None:
    ids = np.arange(count, dtype=np.int32)
    wrong = ids.copy()
    wrong[-1] = bad
    group = BlockTensors([torch.zeros(100, 1, device=DEVICE)])
    where = rf"src\[{count - 1}\] is {bad}, not a block id in \[0, 100\)"
    with pytest.raises(IndexError, match=where):
        copy_blocks(group, wrong, ids + np.int32(50))
    with pytest.raises(IndexError, match=where.replace("src", "dst")):
        copy_blocks(group, ids, wrong)


def test_orders_that_cannot_be_are_refused() -> None:
    group = BlockTensors([torch.zeros(4, 2, device=DEVICE)])
    with pytest.raises(ValueError, match="order is 'any'; it must be one of list, gather_then"):
        copy_blocks(group, int32s(0), int32s(1), order="any")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dst holds block 2 twice"):
        copy_blocks(group, int32s(0, 1), int32s(2, 2), order="gather_then_scatter")
