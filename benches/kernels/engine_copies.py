"""One step's copies of states in a CPU engine: vLLM's own function beside this package's.

``python benches/kernels/engine_copies.py`` needs vLLM and no GPU. The arena is one run of slabs,
as level ``natural`` plans it for backends that keep a block's layers together.
"""

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter

import torch
from hybrid_blocks.vllm.worker import block_copies
from torch.profiler import ProfilerActivity, profile
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy

MIB = 2**20
ROUNDS = 5
FUNCTIONS = {
    "vLLM": block_copies.vllm_copy_kv_cache_blocks_inplace,
    "this package": block_copies.copy_kv_cache_blocks_inplace,
}


def held_bytes(call: Callable[[], None]) -> int:
    """Return the most bytes that a call held at once beyond those before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    held = most = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def seconds(call: Callable[[], None]) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(ROUNDS):
        begin = perf_counter()
        call()
        times.append(perf_counter() - begin)
    return median(times)


def main() -> None:
    """Print time and memory of a step by the number of copies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slab-mib", type=int, default=37, help="MiB of a slab")
    parser.add_argument("--copies", type=int, nargs="+", default=[1, 17], help="copies of a step")
    options = parser.parse_args()
    num_slabs = 2 * max(options.copies)
    arena = [torch.ones(num_slabs, options.slab_mib * MIB, dtype=torch.uint8)]
    print("| copies | function | ms | MiB held |\n|---|---|---|---|")
    for count in options.copies:
        copies = [KVCacheBlockCopy(slab, count + slab) for slab in range(count)]
        for name, function in FUNCTIONS.items():
            call = partial(function, arena, num_slabs, copies)
            call()
            print(
                f"| {count} | {name} | {seconds(call) * 1e3:.0f} | {held_bytes(call) / MIB:.0f} |"
            )


if __name__ == "__main__":
    main()
