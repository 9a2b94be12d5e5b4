"""Time of one call: on the device by CUDA events with cold caches, on the host by its clock."""

from collections.abc import Callable
from time import perf_counter

import torch
from summary import Spread

FLUSH_BYTES = 512 << 20  # several times any L2
HEAD_START_CYCLES = 40_000_000  # The host enqueues the timed calls in these 20 ms.
HOST_CALLS = 60

Call = Callable[[int], None]


def device_times(call: Call, repetitions: int = 20) -> Spread:
    """Return the device time of ``call(repetition)``.

    The device sleeps first, so that the host's launches are queued before the clock starts, then
    L2 is filled with other data. Callers use other buffers in each repetition.
    """
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    for repetition in range(3):
        call(repetition)
    seconds = []
    for repetition in range(repetitions):
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(HEAD_START_CYCLES)
        flush.fill_(repetition)
        begin.record()
        call(repetition)
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return Spread.of(seconds)


def host_times(call: Call) -> Spread:
    """Return what a call costs the host before it returns, on an idle device."""
    seconds = []
    for repetition in range(HOST_CALLS):
        torch.cuda.synchronize()
        begin = perf_counter()
        call(repetition)
        seconds.append(perf_counter() - begin)
    torch.cuda.synchronize()
    return Spread.of(seconds[10:])


def device_copy_rate() -> float:
    """Return bytes read + written per second of a large copy on the device."""
    size = 4 << 30
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * size / device_times(lambda _: target.copy_(source)).median


def link_rates() -> tuple[float, float]:
    """Return bytes per second of a large copy to and from pinned host memory."""
    size = 1 << 30
    device = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    to_host = size / device_times(lambda _: host.copy_(device, non_blocking=True), 10).median
    to_device = size / device_times(lambda _: device.copy_(host, non_blocking=True), 10).median
    return to_host, to_device
