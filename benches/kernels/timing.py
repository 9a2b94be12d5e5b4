"""Time of one call on the device: CUDA events, cold caches, the median of many."""

from collections.abc import Callable
from statistics import median

import torch

FLUSH_BYTES = 512 << 20  # several times any L2
HEAD_START_CYCLES = 40_000_000  # some 20 ms in which the host enqueues what is timed


def device_seconds(call: Callable[[int], None], repetitions: int = 20) -> float:
    """Return the median device time of ``call(repetition)``.

    The device sleeps first, so that the host's launches are queued before the clock starts, then
    L2 is filled with other data. Callers use other buffers in each repetition.
    """
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    for repetition in range(3):
        call(repetition)
    times = []
    for repetition in range(repetitions):
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(HEAD_START_CYCLES)
        flush.fill_(repetition)
        begin.record()
        call(repetition)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return median(times)


def device_copy_rate() -> float:
    """Return bytes read + written per second of a large copy on the device."""
    size = 4 << 30
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * size / device_seconds(lambda _: target.copy_(source))


def link_rates() -> tuple[float, float]:
    """Return bytes per second of a large copy to and from pinned host memory."""
    size = 1 << 30
    device = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    to_host = size / device_seconds(lambda _: host.copy_(device, non_blocking=True), 10)
    to_device = size / device_seconds(lambda _: device.copy_(host, non_blocking=True), 10)
    return to_host, to_device
