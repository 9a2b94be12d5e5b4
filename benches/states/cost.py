"""The time of a state layer by tokens of a prompt and places in it: on the device, and on the host.

Layers have the sizes of Qwen3.5-27B and Nemotron-H-8B. A place costs what the time grows by.
"""

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import state_layer_runs as layers
import torch

IS_DRY = "--dry" in sys.argv
TOKENS = (96,) if IS_DRY else (512, 2048, 8192)
PLACES = (0, 1) if IS_DRY else (0, 1, 2, 4)
REPETITIONS = 1 if IS_DRY else 12

CASES: dict[str, Callable[[], layers.Case]] = {
    "Mamba-2, Nemotron-H-8B": lambda: layers.mamba2(heads=128, head=64, groups=8, state=128),
    "gated delta rule by Triton, Qwen3.5-27B": lambda: layers.qwen(heads=(16, 48), head=128),
    "gated delta rule by FlashInfer, Qwen3.5-27B": lambda: layers.qwen_flashinfer((16, 48)),
}
if IS_DRY:
    CASES = {"Mamba-2": layers.mamba2, "gated delta rule by Triton": layers.qwen}


def measure(case: layers.Case, num_tokens: int, num_places: int) -> dict[str, float]:
    """Return the seconds of metadata, of a layer's call on the host, and on the device."""
    offsets = [num_tokens * at // (num_places + 1) for at in range(1, num_places + 1)]
    rows = [(0, num_tokens, offsets)]
    parts: list[layers.Part] = [(1, 1, 0, num_tokens)]
    arguments = layers.arguments_of(case, num_tokens)
    case.layer.kv_cache = layers.slots(case)
    built, host, device = [], [], []
    for _ in range(REPETITIONS):
        synchronize()
        begin = perf_counter()
        metadata, step = layers.cut_of(case, parts, rows)
        built.append(perf_counter() - begin)
        synchronize()
        events = [torch.cuda.Event(enable_timing=True) for _ in "ab"] if layers.IS_CARD else []
        if events:
            # The host's launches are queued before the device's clock starts.
            torch.cuda._sleep(20_000_000)
            events[0].record()
        begin = perf_counter()
        layers.call(case, metadata, arguments, getattr(type(case.layer), case.method))
        host.append(perf_counter() - begin)
        if events:
            events[1].record()
            events[1].synchronize()
            device.append(events[0].elapsed_time(events[1]) / 1e3)
        step.check_written()
    skipped = REPETITIONS // 3
    return {
        "metadata_s": median(built[skipped:]),
        "host_s": median(host[skipped:]),
        "device_s": median(device[skipped:] or host[skipped:]),
    }


def synchronize() -> None:
    """Wait for the device, if there is one."""
    if layers.IS_CARD:
        torch.cuda.synchronize()


def main() -> None:
    """Print the times of all layers, and what a place adds to each."""
    found: dict[str, Any] = {}
    for name, make in CASES.items():
        torch.manual_seed(0)
        try:
            case = layers.made(make)
            with layers.hooked(case):
                times = {
                    num_tokens: {at: measure(case, num_tokens, at) for at in PLACES}
                    for num_tokens in TOKENS
                }
        except Exception as error:  # noqa: BLE001 - a backend that is missing ends no other row
            found[name] = {"not measured": f"{type(error).__name__}: {error}"}
            continue
        found[name] = {
            "times": times,
            "place_device_s": {
                tokens: [
                    (own[more]["device_s"] - own[few]["device_s"]) / (more - few)
                    for few, more in pairwise(PLACES)
                ]
                for tokens, own in times.items()
            },
        }
    print(json.dumps({"layers": found}), flush=True)


if __name__ == "__main__":
    main()
