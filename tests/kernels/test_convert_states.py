"""Converted states have the bytes of the reference, and nothing else is written."""

from importlib import import_module
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hybrid_blocks.kernels import Backend, Place, Run, StateLayout, StatePools, convert_states
from hybrid_blocks.kernels.launch_queue import queue_of
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import DEVICE, FEW, int32s, running
from state_cases import (
    FORMATS,
    SPECIAL,
    States,
    pairs,
    plain_states,
    same_but_for_nans,
    state_pools,
)

naive: Any = import_module("hybrid_blocks.kernels.convert_states.naive")

FAST: tuple[Backend, ...] = ("triton",)
BACKENDS: tuple[Backend, ...] = ("naive", *FAST)

by_format = pytest.mark.parametrize("state_format", FORMATS)
by_direction = pytest.mark.parametrize("keeps", [True, False])


def running_states(state_format: str, rows: torch.Tensor) -> States:
    """Return one running state and one checkpoint, whose layers have these heads."""
    heads, numbers = rows.shape
    states = plain_states(state_format, num_running=1, num_kept=1, heads=heads, numbers=numbers)
    for layer in range(2):
        states.heads(kept=False, layer=layer, block=0).copy_(rows.view(torch.uint8))
    return states


def converted_by_both(states: States, backend: Backend, *, keeps: bool) -> States:
    """Convert the first block by the reference, and by ``backend`` in a twin, which is returned."""
    twin = states.twin()
    convert_states(states.pools, int32s(0), int32s(0), keeps=keeps, backend="naive")
    with running(backend):
        convert_states(twin.pools, int32s(0), int32s(0), keeps=keeps, backend=backend)
    return twin


def converted_one_by_one(states: States, src: list[int], dst: list[int], *, keeps: bool) -> States:
    """Convert page by page with the codec alone."""
    result = states.twin()
    same, state_format = states.layout.num_same, states.layout.state_format
    for source, target in zip(src, dst, strict=True):
        for layer in range(states.pools.num_layers):
            found = states.page(kept=not keeps, layer=layer, block=source)
            into = result.page(kept=keeps, layer=layer, block=target)
            into[:same] = found[:same]
            heads = states.heads(kept=not keeps, layer=layer, block=source).clone()
            if keeps:
                made = naive.encode(heads.view(torch.float32), state_format)
            else:
                made = naive.decode(heads, state_format).view(torch.uint8)
            into[same:] = made.reshape(-1)
    return result


@pytest.mark.parametrize(
    ("backend", "batch_bytes"), [("naive", 1), ("naive", 1 << 24), *((it, 0) for it in FAST)]
)
@by_direction
@by_format
def test_every_version_converts_page_by_page_and_no_byte_beside(
    state_format: str,
    keeps: bool,
    backend: Backend,
    batch_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(naive, "BATCH_BYTES", batch_bytes)

    @FEW
    @given(state_pools(state_format), st.data())
    def check(states: States, data: st.DataObject) -> None:
        src, dst = data.draw(pairs(states, keeps=keeps))
        expected = converted_one_by_one(states, src, dst, keeps=keeps)
        with running(backend):
            convert_states(states.pools, int32s(*src), int32s(*dst), keeps=keeps, backend=backend)
        assert same_but_for_nans(states, expected)

    check()


@pytest.mark.parametrize("backend", FAST)
@by_format
def test_special_numbers_become_the_same_bytes(state_format: str, backend: Backend) -> None:
    """Each special number as the largest of a head, with every other below it."""
    tops = torch.tensor(SPECIAL).abs()
    values = torch.tensor(SPECIAL)
    rows = torch.where(values.abs() <= tops[:, None], values, 0.0)
    rows[:, 0] = tops
    states = running_states(state_format, rows)
    twin = converted_by_both(states, backend, keeps=True)
    assert same_but_for_nans(states, twin)


@pytest.mark.parametrize("backend", FAST)
@by_format
def test_every_code_is_restored_alike(state_format: str, backend: Backend) -> None:
    """All codes behind scales of every kind, zero, subnormal and infinite ones too."""
    numbers = 1 << 16 if state_format == "bf16" else 256
    scales = torch.tensor([1.0, 0.37, 0.0, 2.0**-107, 2.0**-140, 3e38, torch.inf, torch.nan])
    states = plain_states(state_format, num_running=1, num_kept=1, heads=8, numbers=numbers)
    for layer in range(2):
        heads = states.heads(kept=True, layer=layer, block=0)
        if state_format == "bf16":
            codes = torch.arange(numbers, dtype=torch.int32).to(torch.int16)
            heads.copy_(codes.view(torch.uint8).expand(8, -1))
        else:
            heads[:, :4] = scales.view(8, 1).view(torch.uint8).to(DEVICE)
            heads[:, 4:] = torch.arange(256, dtype=torch.uint8, device=DEVICE)
    twin = converted_by_both(states, backend, keeps=False)
    assert same_but_for_nans(states, twin)
    assert states.restored_numbers().isfinite().any()


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("state_format", ["int8", "fp8"])
def test_neighbours_of_ties_are_rounded_once(state_format: str, backend: Backend) -> None:
    """Numbers next to half codes, under scales whose factor is not exact."""
    generator = torch.Generator().manual_seed(3)
    tops = 1 + torch.rand(24, 1, generator=generator)
    codes = naive.decode(
        torch.cat(
            [
                torch.ones(1).view(torch.uint8),
                torch.arange(126 - (state_format == "fp8"), dtype=torch.uint8),
            ]
        ),
        state_format,
    )
    halves = (codes[1:] + codes[:-1]) / 2
    largest = 127 if state_format == "int8" else 448
    ties = halves * (tops / largest)
    below, above = ties.view(torch.int32) - 1, ties.view(torch.int32) + 1
    rows = torch.cat([tops, ties, -ties, below.view(torch.float32), above.view(torch.float32)], 1)
    states = running_states(state_format, rows)
    twin = converted_by_both(states, backend, keeps=True)
    assert torch.equal(states.arena, twin.arena)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("numbers", [8192, 16384, 16385, 33000])
@by_format
def test_heads_of_every_size_are_converted_and_restored(
    state_format: str, numbers: int, backend: Backend
) -> None:
    """Heads that a program holds, and heads that it reads twice."""
    states = plain_states(
        state_format, num_running=2, num_kept=1, num_layers=1, numbers=numbers, same=20
    )
    # The largest number is not in what is read last.
    states.heads(kept=False, layer=0, block=0).view(torch.float32)[:, 5] *= 1000
    twin = states.twin()
    versions: list[tuple[StatePools, Backend]] = [(states.pools, "naive"), (twin.pools, backend)]
    for pools, name in versions:
        with running(name):
            convert_states(pools, int32s(0), int32s(0), keeps=True, backend=name)
            convert_states(pools, int32s(0), int32s(1), keeps=False, backend=name)
    assert torch.equal(states.arena, twin.arena)


@pytest.mark.parametrize("backend", BACKENDS)
@by_direction
def test_padding_in_a_list_on_the_device_is_skipped(backend: Backend, keeps: bool) -> None:
    states = plain_states("int8")
    twin = states.twin()
    bad = 3 if keeps else 5
    src = torch.tensor([0, -1, 1, bad, 2, 0], dtype=torch.int32, device=DEVICE)
    dst = torch.tensor([2, 1, -1, 0, 8 - bad, 9], dtype=torch.int32, device=DEVICE)
    with running(backend):
        run = import_module(f"hybrid_blocks.kernels.convert_states.{backend}")
        run.convert_states(queue_of(DEVICE, None), states.pools, src, dst, keeps)
    convert_states(twin.pools, int32s(0), int32s(2), keeps=keeps, backend="naive")
    assert torch.equal(states.arena, twin.arena)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("count", [0, 1, 256, 257, 4097])
def test_lists_of_every_length_are_carried_out(backend: Backend, count: int) -> None:
    states = plain_states(
        "int8", num_running=3, num_kept=4100, num_layers=1, heads=1, numbers=4, same=4
    )
    src = np.arange(count, dtype=np.int32) % np.int32(3)
    dst = np.random.default_rng(0).permutation(4100)[:count].astype(np.int32)
    if DEVICE.type == "cpu" and backend == "triton":  # interpreted one program after another
        dst, src = dst[-20:], src[-20:]
    expected = converted_one_by_one(states, src.tolist(), dst.tolist(), keeps=True)
    with running(backend):
        convert_states(states.pools, src, dst, keeps=True, backend=backend)
    assert torch.equal(states.arena, expected.arena)


@by_direction
@pytest.mark.parametrize(("count", "launches"), [(1, 1), (256, 1), (4096, 1), (4097, 2)])
def test_a_list_is_one_launch(keeps: bool, count: int, launches: int) -> None:
    states = plain_states(
        "int8", num_running=4100, num_kept=4100, num_layers=3, heads=1, numbers=4, same=0
    )
    ids = np.arange(count, dtype=np.int32)
    with mock.patch.object(naive, "convert_states") as launch:
        convert_states(states.pools, ids, ids, keeps=keeps, backend="naive")
    assert sum(len(call.args[2]) for call in launch.call_args_list) == count
    assert launch.call_count == launches


def test_the_cuda_version_is_named_as_missing() -> None:
    pools = plain_states("int8").pools
    with (
        running("cupy"),
        pytest.raises(ValueError, match="'cupy' is no version of convert_states: usable here are"),
    ):
        convert_states(pools, int32s(0), int32s(0), keeps=True, backend="cupy")


@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_more_than_4_gib_apart_are_reached(backend: Backend) -> None:
    stride = 3 * 2**30 + 256  # virtual memory: only the touched pages exist
    layout = StateLayout(
        state_format="int8",
        num_running=3,
        num_kept=3,
        page_bytes=80,
        heads=1,
        numbers=16,
        runs=(Run(1, Place(0, 0, stride), Place(128, 0, stride)),),
    )
    states = States(torch.empty(2 * stride + 256, dtype=torch.uint8, device=DEVICE), layout)
    states.page(kept=False, layer=0, block=2).copy_(torch.arange(80, dtype=torch.uint8) % 60)
    with running(backend):
        convert_states(states.pools, int32s(2), int32s(1), keeps=True, backend=backend)
        convert_states(states.pools, int32s(1), int32s(0), keeps=False, backend=backend)
    back = states.page(kept=False, layer=0, block=0)
    known = states.page(kept=False, layer=0, block=2)
    assert torch.equal(back[:16], known[:16])
    found, numbers = back[16:].view(torch.float32), known[16:].view(torch.float32)
    assert (found - numbers).abs().max() <= numbers.abs().max() / 253


def test_wrong_lists_are_refused_with_the_reason() -> None:
    pools = plain_states("bf16").pools
    before = pools.arena.clone()
    with pytest.raises(TypeError, match="src must be an int32 array, got int64"):
        convert_states(pools, np.array([0]), int32s(1), keeps=True)
    with pytest.raises(ValueError, match="src has 2 ids, dst has 1; they are pairs"):
        convert_states(pools, int32s(0, 1), int32s(2), keeps=True)
    with pytest.raises(IndexError, match=r"src\[1\] is 3, not a block id in \[0, 3\)"):
        convert_states(pools, int32s(0, 3), int32s(2, 4), keeps=True)
    with pytest.raises(IndexError, match=r"dst\[0\] is 5, not a block id in \[0, 5\)"):
        convert_states(pools, int32s(0), int32s(5), keeps=True)
    with pytest.raises(IndexError, match=r"dst\[0\] is 3, not a block id in \[0, 3\)"):
        convert_states(pools, int32s(4), int32s(3), keeps=False)
    with pytest.raises(IndexError, match=r"src\[0\] is -1"):
        convert_states(pools, int32s(-1), int32s(2), keeps=False)
    with pytest.raises(ValueError, match="dst holds block 2 twice"):
        convert_states(pools, int32s(0, 1), int32s(2, 2), keeps=True)
    assert torch.equal(pools.arena, before)


def made(**changes: Any) -> StatePools:
    known = {"state_format": "int8", "num_running": 2, "num_kept": 2, "page_bytes": 80}
    known |= {"heads": 1, "numbers": 16}
    runs = changes.pop("runs", (Run(1, Place(0, 0, 80), Place(160, 0, 40)),))
    arena = changes.pop("arena", torch.zeros(240, dtype=torch.uint8, device=DEVICE))
    return StatePools(arena, StateLayout(**{**known, **changes}, runs=runs))


def test_wrong_pools_are_refused_with_the_reason() -> None:
    assert made().num_layers == 1
    with pytest.raises(TypeError, match="the arena must be uint8, got float32"):
        made(arena=torch.zeros(60))
    with pytest.raises(ValueError, match=r"contiguous bytes, got shape \(2, 120\)"):
        made(arena=torch.zeros(2, 120, dtype=torch.uint8))
    with pytest.raises(ValueError, match="state_format is 'int4'; it must be one of bf16, fp8"):
        made(state_format="int4")
    with pytest.raises(ValueError, match="80 bytes does not hold 2 heads of 16 float32 numbers"):
        made(heads=2)
    with pytest.raises(ValueError, match="the layout has no layer"):
        made(runs=())
    with pytest.raises(ValueError, match="kept pool has 3 blocks in bytes 160 to 276 of an arena"):
        made(num_kept=3)
    with pytest.raises(ValueError, match="running pool has 0 blocks"):
        made(num_running=0)
    with pytest.raises(ValueError, match="running heads lie at multiples of 2 bytes"):
        made(runs=(Run(1, Place(2, 0, 80), Place(164, 0, 36)),))
    with pytest.raises(ValueError, match="running pool whose ids differ by less than 2 share"):
        made(runs=(Run(1, Place(0, 0, 64), Place(160, 0, 40)),))
