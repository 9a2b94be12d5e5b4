"""How many SMs fill the link, when the copy engine is quicker, and which SMs a launch used."""

from ctypes import c_void_p
from time import monotonic
from typing import Any

import numpy as np
import torch
from cases import FAST, Offload
from hybrid_blocks.kernels import cuda, launch, sources
from hybrid_blocks.kernels.gather_scatter.cupy import _parameters
from hybrid_blocks.kernels.launch_queue import queue_of
from summary import engine_rules, fewest_sms
from timing import device_times

SMS = (1, 2, 3, 4, 6, 8, 12, 16)
SIZES = (8 << 10, 32 << 10, 128 << 10, 512 << 10)
COUNTS = (1, 16, 256)  # runs of one transfer, for the choice of the copy engine
DIRECTIONS = ("gather", "scatter")


def sms_used(offload: Offload, max_sms: int) -> int:
    """Return on how many SMs the warps of a gather with ``max_sms`` really ran.

    The same source is compiled with ``RECORD_SMS``, which lets each thread block write its %smid.
    """
    queue = queue_of(offload.pages.device, None)
    text = "#define RECORD_SMS\n" + sources.source_of("gather_scatter")
    module = queue.driver.module(text)
    found = np.zeros(32, np.uint32)  # as sms_used in common.cuh
    used = module.get_global("sms_used")
    used.copy_from_host(c_void_p(found.ctypes.data), found.nbytes)
    function = queue.driver.function(module, "gather_blocks")
    run = cuda.Launch(queue, function, _parameters(offload.group))
    grid = launch.cuda_grid(run.num_units * offload.count, max_sms)
    run(
        (offload.lists[0], offload.places),
        grid,
        num_items=offload.count,
        num_places=offload.count,
        staging=offload.staging.data_ptr(),
        granule=offload.page_bytes,
    )
    torch.cuda.synchronize()
    used.copy_to_host(c_void_p(found.ctypes.data), found.nbytes)
    return int(np.unpackbits(found.view(np.uint8)).sum())


def rates_by_sms(deadline: float) -> dict[str, dict[str, dict[int, dict[int, float]]]]:
    """Return bytes per second by direction, version, page size and SMs."""
    rates: dict[str, dict[str, dict[int, dict[int, float]]]] = {}
    for size in SIZES:
        offload = Offload(size, 64 << 20)
        for direction in DIRECTIONS:
            for backend in FAST:
                if monotonic() > deadline:
                    return rates
                of = rates.setdefault(direction, {}).setdefault(backend, {})
                of[size] = {
                    sms: offload.total_bytes
                    / device_times(offload.call(direction, backend, sms), 5).median
                    for sms in SMS
                }
    return rates


def engine_against_kernel(
    deadline: float, sms: dict[str, dict[str, int]]
) -> dict[str, tuple[dict[tuple[int, int], float], dict[tuple[int, int], float]]]:
    """Return bytes per second by (run bytes, runs): of the copy engine, of the CUDA kernel."""
    found: dict[str, Any] = {direction: ({}, {}) for direction in DIRECTIONS}
    for size in SIZES:
        for count in COUNTS:
            offload = Offload(size, size * count)
            for direction in DIRECTIONS:
                if monotonic() > deadline:
                    return found
                for rates, backend, bound in (
                    (found[direction][0], "copy_engine", None),
                    (found[direction][1], "cupy", sms[direction]["cupy"]),
                ):
                    call = offload.call(direction, backend, bound)
                    rates[size, count] = offload.total_bytes / device_times(call, 5).median
    return found


def gemm_share(offload: Offload, max_sms: int) -> float:
    """Return how fast matrix products run beside a gather with ``max_sms``, 1 being alone."""
    n = 8192
    left, right = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    beside = torch.cuda.Stream()

    def products(_: int) -> None:
        for _ in range(10):
            left @ right

    def with_gather(i: int) -> None:
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(4):
                offload.call("gather", "cupy", max_sms)(i)
        products(i)

    alone = device_times(products, 5).median
    return alone / device_times(with_gather, 5).median


def fewest(rates: dict[str, dict[str, dict[int, dict[int, float]]]]) -> dict[str, dict[str, int]]:
    """Return the fewest SMs that fill the link, by direction and version."""
    return {
        direction: {backend: fewest_sms(of) for backend, of in versions.items()}
        for direction, versions in rates.items()
    }


def rules(found: dict[str, Any]) -> dict[str, list[tuple[int, int]]]:
    """Return from which sizes and counts on the copy engine is taken, by direction."""
    return {direction: engine_rules(*rates) for direction, rates in found.items()}
