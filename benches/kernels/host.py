"""Host time of one call, with a driver that accepts launches and does nothing.

Everything that Python does is timed, the foreign calls included; what the real driver adds to a
launch is not: `make bench-gpu` times that on a card. ``make bench-kernels-host`` runs this alone.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter_ns, thread_time_ns
from typing import Any
from unittest import mock

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "kernels"))

import cuda_on_cpu
from hybrid_blocks.kernels import BlockTensors, backend, copy_blocks, gather_blocks, launch
from hybrid_blocks.kernels.launch_queue import LaunchQueue, queue_of
from hybrid_blocks.kernels.upload import ListRing

# Microseconds a call may take, by what is called: the host's share of a step.
LIMITS = {
    "copy 1 pair": 15,
    "copy 8 pairs": 15,
    "copy 64 pairs": 15,
    "copy 4,096 pairs": 60,
    "keep 8 states in int8": 25,
    "gather 64 blocks to pinned memory": 20,
}
CALLS, ROUNDS = 200, 15
CUDA = torch.device("cuda", 0)


@contextmanager
def pretended_device() -> Iterator[None]:
    """Let CPU tensors of a group pass for CUDA tensors, and torch's stream queries be answered."""
    cuda_on_cpu.install()
    cuda_on_cpu.fake_driver().tell("runs_kernels", value=False)
    with ExitStack() as stack:
        versions = ("cupy", "triton", "naive")
        stack.enter_context(mock.patch.object(backend, "usable_backends", return_value=versions))
        for name, answer in (("_cuda_getCurrentRawStream", 7), ("_cuda_getDevice", 0)):
            stack.enter_context(mock.patch.object(torch._C, name, partial(_answer, answer)))
        nothing = partial(_answer, nullcontext())
        stack.enter_context(mock.patch.object(LaunchQueue, "activate", nothing))
        yield


def _answer(answer: Any, *_: object) -> Any:
    """Return what a query of torch would; a mock of its own would cost more than the query."""
    return answer


def pretend(group: BlockTensors) -> BlockTensors:
    """Return ``group`` as if its tensors lay on the device; its tables are made before."""
    group.tables(launch.CUDA_UNIT_BYTES)
    group.device = CUDA
    return group


def cases() -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield a name and a call: a group of 48 layers with two tensors each, 65,536 pages."""
    layers = [torch.zeros(512, 64, dtype=torch.uint8) for _ in range(96)]
    states = pretend(BlockTensors(layers))
    pages = pretend(BlockTensors([torch.zeros(65536, 16, dtype=torch.uint8)]))
    queue = queue_of(CUDA, None)
    queue.__dict__["ring"] = ListRing(queue.driver, torch.device("cpu"), queue.handle)
    rng = np.random.default_rng(0)
    for name, group, count in (
        ("copy 1 pair", states, 1),
        ("copy 8 pairs", states, 8),
        ("copy 64 pairs", states, 64),
        ("copy 256 pairs", pages, 256),
        ("copy 4,096 pairs", pages, 4096),
    ):
        ids = rng.permutation(group.num_blocks)[: 2 * count].astype(np.int32)
        src, dst = ids[:count].copy(), ids[count:].copy()
        yield name, lambda group=group, src=src, dst=dst: copy_blocks(group, src, dst)
    chain = np.arange(4096, dtype=np.int32)
    after = chain + np.int32(1)
    yield "copy 4,096 pairs, one chain", lambda: copy_blocks(pages, after, chain)
    few, places = chain[:64].copy(), chain[64:0:-1] - np.int32(1)
    staging = torch.zeros(64 * pages.record_bytes, dtype=torch.uint8)
    with mock.patch.object(torch.Tensor, "is_pinned", partial(_answer, 1)):
        yield (
            "gather 64 blocks to pinned memory",
            lambda: gather_blocks(pages, few, staging, places, pages.record_bytes, max_sms=4),
        )


def microseconds(call: Callable[[], None]) -> float:
    """Return the median over rounds of a call's mean processor time in a round."""
    call()
    rounds = []
    for _ in range(ROUNDS):
        begin = thread_time_ns()
        for _ in range(CALLS):
            call()
        rounds.append((thread_time_ns() - begin) / CALLS / 1e3)
    return median(rounds)


def measure() -> list[tuple[str, float, float]]:
    """Return (name, median, best) in microseconds for each case."""
    with pretended_device():
        return [(name, microseconds(call), best_of(call)) for name, call in cases()]


def best_of(call: Callable[[], None]) -> float:
    """Return the least time of a single call, which other work on the machine touches least."""
    times = []
    for _ in range(CALLS * 5):
        begin = perf_counter_ns()
        call()
        times.append(perf_counter_ns() - begin)
    return min(times) / 1e3


def main() -> None:
    """Print the table; with ``--check`` exit 1 where a call is over its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 over a limit")
    check = parser.parse_args().check
    print("| call | median | best | limit |\n|---|---|---|---|")
    over = []
    for name, typical, best in measure():
        limit = LIMITS.get(name)
        print(f"| {name} | {typical:.1f} µs | {best:.1f} µs | {limit or '—'} |")
        if limit is not None and best > limit:
            over.append(name)
    if check and over:
        sys.exit(f"over the limit: {', '.join(over)}")


if __name__ == "__main__":
    main()
