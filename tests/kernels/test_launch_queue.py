"""The ring of lists, held buffers and laid-out launches that the host keeps of a stream."""

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
import torch
from cuda_on_cpu import FakeDriver, fake_driver, real_queues_driver
from hybrid_blocks.kernels import BlockTensors, copy_blocks, cuda, driver, gather_scatter
from hybrid_blocks.kernels.launch_queue import LaunchQueue, queue_of
from hybrid_blocks.kernels.upload import RING_IDS
from kernel_cases import DEVICE, int32s, running

pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="asks the fake driver")

CPU = torch.device("cpu")


@pytest.fixture
def behind() -> Iterator[None]:
    """Let the device never be done before the host waits."""
    fake_driver().tell("device_is_behind", value=True)
    yield
    fake_driver().tell("device_is_behind", value=False)


@pytest.fixture
def queue() -> LaunchQueue:
    return LaunchQueue(CPU, 99)


def test_the_default_stream_is_torchs_own_and_not_a_new_one() -> None:
    cuda_device = torch.device("cuda", 0)
    with (
        mock.patch.object(torch.cuda, "default_stream") as default,
        mock.patch.object(torch.cuda, "ExternalStream") as external,
    ):
        assert LaunchQueue(cuda_device, 0).stream is default.return_value
        assert LaunchQueue(cuda_device, 99).stream is external.return_value
    external.assert_called_once_with(99, device=cuda_device)


def test_without_cupy_events_and_uploads_go_to_cudas_own_library() -> None:
    for spec, kind in ((None, driver.BareDriver), (object(), FakeDriver)):
        with mock.patch.object(driver, "find_spec", return_value=spec):
            assert type(real_queues_driver.__wrapped__()) is kind


@pytest.mark.parametrize(
    ("status", "state", "expected"), [(0, 0, False), (0, 1, True), (906, 0, True), (201, 1, False)]
)
def test_a_capture_of_any_stream_is_seen(status: int, state: int, expected: bool) -> None:
    """906: another stream captures, and this is the legacy one. 201: the thread has no context."""
    fake_driver().tell("capture_status", value=status)
    fake_driver().tell("capturing", value=state)
    try:
        assert driver.BareDriver().is_capturing(99) is expected
    finally:
        fake_driver().tell("capture_status", value=0)
        fake_driver().tell("capturing", value=0)


def test_an_event_ends_with_its_last_reference() -> None:
    bare, before = driver.BareDriver(), fake_driver().count("destroyed")
    event = bare.record(99, None)
    assert bare.record(99, event) is event
    assert fake_driver().count("destroyed") == before
    del event
    gc.collect()
    assert fake_driver().count("destroyed") == before + 1


def copying() -> int:
    return cuda.kernel("copy_blocks", "copy_blocks", CPU)


@pytest.mark.usefixtures("behind")
def test_a_full_ring_waits_for_the_oldest_launch_and_never_grows(queue: LaunchQueue) -> None:
    ids = np.arange(RING_IDS // 4, dtype=np.int32)
    address = queue.ring.device_side.data_ptr()
    waits = fake_driver().count("waits")
    for i in range(4):
        queue.addresses([ids + np.int32(i)])
        queue.done()
    assert fake_driver().count("waits") == waits
    for i in range(40):
        (at,) = queue.addresses([ids[:200] + np.int32(i)])
        assert address <= at < address + 4 * RING_IDS
        queue.done()
    assert fake_driver().count("waits") == waits + 1, "a quarter makes room for many short lists"
    assert queue.ring.device_side.data_ptr() == address


@pytest.mark.usefixtures("behind")
@pytest.mark.parametrize("seed", range(5))
def test_no_place_is_used_twice_while_a_launch_may_read_it(queue: LaunchQueue, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ids = np.zeros(RING_IDS, np.int32)
    for _ in range(300):
        queue.addresses([ids[: int(rng.integers(1, RING_IDS // 2))]])
        if rng.random() < 0.7:  # else the next list comes before the launch was noted
            queue.done()
        used = sorted((begin, end) for begin, end, _ in queue.ring._used)
        assert all(begin < end for begin, end in used)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(used))


@pytest.mark.usefixtures("behind")
def test_what_no_launch_has_read_yet_is_not_written_over(queue: LaunchQueue) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        sizes = rng.integers(1, RING_IDS // 6, 2)
        lists = [rng.integers(0, 1 << 30, size).astype(np.int32) for size in sizes]
        places = queue.on_device_side(lists)
        for ids, place in zip(lists, places, strict=True):
            assert np.array_equal(place.numpy(), ids)
        queue.done()


def test_a_launch_is_laid_out_once_a_group_and_stream() -> None:
    group = BlockTensors([torch.zeros(8, 64)])
    with running("cupy"):
        copy_blocks(group, int32s(0), int32s(1), backend="cupy")
        with mock.patch.object(cuda, "Launch", side_effect=AssertionError("laid out again")):
            for count in (1, 3):
                ids = np.arange(count, dtype=np.int32)
                copy_blocks(group, ids, ids + np.int32(4), backend="cupy")


def test_parameters_of_the_wrong_size_never_reach_a_kernel(queue: LaunchQueue) -> None:
    with pytest.raises(AssertionError, match=r"a kernel takes parameters of \[8, 8, 4, 2064"):
        cuda.Launch(queue, copying(), [("segments", "u8", 0)])


def test_a_launch_the_driver_refuses_is_an_error(queue: LaunchQueue) -> None:
    group = BlockTensors([torch.zeros(8, 64)])
    from hybrid_blocks.kernels.copy_blocks.cupy import _free  # noqa: PLC0415

    run = cuda.Launch(queue, copying(), _free(group))
    with pytest.raises(RuntimeError, match="cuLaunchKernel returned 1"):
        run((int32s(0), int32s(1)), (0, 256), num_items=1)


@pytest.mark.usefixtures("behind")
def test_a_pinned_buffer_lives_until_the_device_is_done_with_it(queue: LaunchQueue) -> None:
    buffer = torch.zeros(10)
    alive = weakref.ref(buffer)
    queue.keep(buffer)
    del buffer
    gc.collect()
    queue.keep(torch.zeros(1))
    assert alive() is not None
    fake_driver().wait(queue._kept[0][0])
    queue.keep(torch.zeros(1))
    assert alive() is None


def test_a_pinned_buffer_is_guarded_but_not_in_a_capture() -> None:
    pinned, queue = torch.zeros(4), LaunchQueue(torch.device("cuda", 0), 99)
    vars(queue)["driver"] = fake_driver()
    with mock.patch.object(LaunchQueue, "activate", return_value=nullcontext()):
        queue.guard(pinned, own_stream=False)
        assert queue._kept[-1][1] is pinned
        queue._kept.clear()
        with mock.patch.object(LaunchQueue, "is_capturing", return_value=True):
            queue.guard(pinned, own_stream=False)
            assert not queue._kept
            queue.guard(pinned, own_stream=False, may_capture=False)
            assert queue._kept


def test_threads_that_share_a_stream_take_turns() -> None:
    state = torch.arange(4000).view(-1, 1)
    group = BlockTensors([state])
    failures = []

    def fork(first: int) -> None:
        for i in range(100):
            ids = np.arange(first + 10 * i, first + 10 * i + 10, dtype=np.int32)
            try:
                copy_blocks(group, ids, ids + np.int32(2000), backend="cupy")
            except Exception as error:  # noqa: BLE001
                failures.append(error)

    with running("cupy"):
        threads = [threading.Thread(target=fork, args=(first,)) for first in (0, 1000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    assert torch.equal(state[2000:], state[:2000])


def test_host_lists_are_refused_in_a_capture_and_device_lists_are_not() -> None:
    queue = queue_of(CPU, None)
    with (
        mock.patch.object(type(queue), "is_capturing", return_value=True),
        pytest.raises(RuntimeError, match="host lists cannot be captured in a CUDA graph"),
    ):
        copy_blocks(BlockTensors([torch.zeros(4, 1)]), int32s(0), int32s(1))


def test_the_copy_engine_copies_each_run_once() -> None:
    group = BlockTensors([torch.zeros(9, 40), torch.zeros(2, 9, 12).transpose(0, 1)])
    before, staging = fake_driver().count("copies"), torch.zeros(1000, dtype=torch.uint8)
    with running("cupy"):
        gather_scatter.gather_blocks(
            group, int32s(7, 0, 3), staging, int32s(5, 0, 9), 80, backend="copy_engine"
        )
    assert fake_driver().count("copies") == before + 3 * 3


def test_the_copy_engine_only_gathers_and_scatters() -> None:
    group = BlockTensors([torch.zeros(4, 1)])
    with running("cupy"), pytest.raises(ValueError, match="is no version of copy_blocks"):
        copy_blocks(group, int32s(0), int32s(1), backend="copy_engine")
