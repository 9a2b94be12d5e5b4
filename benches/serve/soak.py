"""A bounded soak: ``make soak SECONDS=3600``, or with ``ARGS=--offload``.

The mixed load runs over and over at level ``natural`` with the check of provenance on. Memory is so
small that requests are preempted, and some clients hang up. No round begins after ``--seconds``,
and one that generates nothing for five minutes is given up. The exit status is 1 then, and in these
cases: a request fails, or the check or the log names an integrity error; a block is held once the
server is idle and its prefix cache reset; nothing was preempted; memory grows.

With ``--offload`` host memory, a disk and a bucket lie below the device. Each holds less than the
load, and the bucket's server is killed after half of the time. Then it also fails if nothing was
loaded or read, and if the engine does not say that the bucket is gone.
"""

import argparse
import asyncio
import json
import shutil
import sys
import time
from collections.abc import Awaitable
from contextlib import ExitStack
from pathlib import Path

import models
from hybrid_blocks.tools.doctor.features import transfer
from load import Done, requests, send
from object_server import BUCKET, object_server
from server import Server, serve
from traffic import hang_up
from watch import Sample, Watch, take

FOLDER = Path("build") / "serve"
PATIENCE_S = 60.0
STALL_S = 300.0
BETWEEN_LINES_S = 30.0
GROWTH_MIB = 16.0
"""How far resident memory may grow after the second round, in each process but the workers."""

WORKER_GROWTH_MIB = 64.0
"""How far a worker may grow in the second half. vLLM's own grows by 300 MiB in the first hour."""

HOST_MIB, DISK_MIB = 16, 64
PREFIX = "hybrid_blocks_offload_"


def main() -> int:
    options = _arguments()
    model = models.build(options.model, FOLDER)
    log = FOLDER / f"{model.name}-soak-{options.level}.log"
    memory = ("--kv-cache-memory-bytes", str(int(options.mib * 2**20)))
    checked = {"HYBRID_BLOCKS_CHECK": "1"} if options.check else {}
    of_server = [*memory, "--max-num-batched-tokens", "256"]
    with ExitStack() as bucket:
        if options.offload:
            checked |= bucket.enter_context(object_server())
            of_server += ["--kv-transfer-config", json.dumps(_tiers())]
        with serve(model, options.level, log, *of_server, variables=checked) as server:
            problems = _soak(server, options, bucket)
            if options.offload:
                problems += _unused(server)
            text = server.log_text()
    if "IntegrityError" in text or "Traceback" in text:
        problems.append(f"the log has an error: {log}")
    for problem in problems:
        print(f"failed: {problem}")
    return 1 if problems else 0


def _tiers() -> dict[str, object]:
    """Return the connector over host memory, a new folder and a bucket."""
    disk = (FOLDER / "soak-disk").absolute()
    shutil.rmtree(disk, ignore_errors=True)
    tiers = {
        "host": f"{HOST_MIB}MiB",
        "disk": f"{disk}:{DISK_MIB}MiB",
        "objects": f"s3://{BUCKET}/soak",
        "read": "longest",  # a small model computes sooner than a busy disk reads
    }
    spec = {"spec_name": "HybridOffloadingSpec", "spec_module_path": "hybrid_blocks.offload"}
    return transfer("OffloadingConnector", spec | tiers)


def _unused(server: Server) -> list[str]:
    """Name what offload did not do, by its own figures, and print them."""
    figures = server.metrics()
    expected = ("stored_chunks_total", "loaded_chunks_total", "promoted_bytes_total")
    names = [*expected, "evicted_chunks_total", "object_refused"]
    print("offload: " + ", ".join(f"{name} {figures[PREFIX + name]:,.0f}" for name in names))
    problems = [f"{name} is 0" for name in expected if not figures[PREFIX + name]]
    if not figures[PREFIX + "object_refused"]:
        problems.append("the bucket is killed, and the engine does not say so")
    return problems


def _soak(server: Server, options: argparse.Namespace, bucket: ExitStack) -> list[str]:
    problems: list[str] = []
    resident: list[dict[str, float]] = []
    start = time.monotonic()
    number = num_requests = num_preemptions = 0
    while time.monotonic() < start + options.seconds and not problems:
        if options.offload and time.monotonic() > start + options.seconds / 2:
            bucket.close()
        load = requests(options.sessions, options.rate, seed=number)
        with Watch(server, _Lines(number)) as watch:
            done = asyncio.run(_unless_it_stalls(send(server, load), watch))
        if done is None:
            problems.append(f"round {number}: nothing was generated for {STALL_S:,.0f} s")
            break
        asyncio.run(hang_up(server, [one.prompt for one in load[:8]], after=3))
        num_requests += len(done)
        problems += [
            f"round {number}: {len(one.tokens)} tokens instead of {one.request.max_tokens}"
            for one in done
            if len(one.tokens) != one.request.max_tokens
        ]
        sample, held = _idle(server, start)
        num_preemptions = sample.preemptions
        problems += [f"round {number}: {what}" for what in held]
        memory = {name: size / 2**20 for name, size in server.resident_bytes().items()}
        resident.append(memory)
        print(
            f"{sample.at_s:7.0f} s  round {number}  requests {num_requests:,}  "
            f"preemptions {sample.preemptions:,}  hits {sample.hit_tokens:,} of "
            f"{sample.prompt_tokens:,} tokens  resident "
            + ", ".join(f"{name} {size:,.0f}" for name, size in memory.items())
            + " MiB",
            flush=True,
        )
        number += 1
    if not num_preemptions:
        problems.append("no request was preempted: give less memory, --mib")
    # Chunks to upload wait once the bucket is gone, up to a bound.
    settled = 3 * len(resident) // 4 if options.offload else 1
    return problems + _growth(resident, settled)


def _growth(resident: list[dict[str, float]], settled: int) -> list[str]:
    """Name the processes that grew, from their memory in MiB after each round.

    Only a worker counts before round ``settled``.
    """
    problems = []
    for process, last in resident[-1].items() if resident else ():
        is_worker = "Worker" in process
        # The first two rounds fill caches of Python and torch.
        start = len(resident) // 2 if is_worker else min(settled, len(resident) - 1)
        growth = last - resident[start].get(process, last)
        if growth > (WORKER_GROWTH_MIB if is_worker else GROWTH_MIB):
            problems.append(f"{process} grew by {growth:,.0f} MiB from round {start} on")
    return problems


class _Lines:
    """Prints a sample now and then."""

    def __init__(self, number: int) -> None:
        self.number, self.next_s = number, BETWEEN_LINES_S

    def __call__(self, sample: Sample) -> None:
        if sample.at_s < self.next_s:
            return
        self.next_s = sample.at_s + BETWEEN_LINES_S
        print(
            f"  round {self.number}, {sample.at_s:5.0f} s  running {sample.running}  waiting "
            f"{sample.waiting}  preemptions {sample.preemptions:,}",
            flush=True,
        )


async def _unless_it_stalls(answers: Awaitable[list[Done]], watch: Watch) -> list[Done] | None:
    """Wait for answers; give up where the counts of the server stand still."""
    task = asyncio.ensure_future(answers)
    seen, since = -1, time.monotonic()
    while not (await asyncio.wait({task}, timeout=1.0))[0]:
        generated = watch.samples[-1].generated_tokens if watch.samples else 0
        if generated != seen:
            seen, since = generated, time.monotonic()
        elif time.monotonic() > since + STALL_S:
            task.cancel()
            return None
    return task.result()


def _idle(server: Server, start: float) -> tuple[Sample, list[str]]:
    """Reset the prefix cache once nothing runs, and say what is held all the same."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        sample = take(server, start)
        if not sample.running + sample.waiting + sample.usage:
            server.reset_prefix_cache()
            sample, held = _held(server, start)
            if not held or time.monotonic() > deadline:
                return sample, held
        elif time.monotonic() > deadline:
            return sample, [f"{sample.running} running, {sample.usage:.1%} in use when idle"]
        time.sleep(1.0)


def _held(server: Server, start: float) -> tuple[Sample, list[str]]:
    """Name the blocks that are live or cached, and the slabs in use."""
    sample = take(server, start)
    held = [
        f"{int(value)} blocks held: {labels}"
        for (name, labels), value in server.samples()
        if name == "hybrid_blocks_blocks" and value and 'state="free"' not in labels
    ]
    if sample.usage:
        held.append(f"{sample.usage:.1%} in use")
    return sample, held


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--model", choices=sorted(models.MODELS), default="granitemoehybrid")
    parser.add_argument("--level", choices=["natural", "manager", "off"], default="natural")
    parser.add_argument("--check", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--mib", type=float, default=2.5, help="memory of the cache")
    parser.add_argument("--sessions", type=int, default=60, help="sessions a round")
    parser.add_argument("--rate", type=float, default=30.0, help="sessions that start a second")
    parser.add_argument("--offload", action="store_true", help="host memory, a disk and a bucket")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
