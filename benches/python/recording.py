"""Instructions that ``HYBRID_BLOCKS_RECORD`` adds to a step; needs Debian's valgrind.

Processes run vLLM's scheduler without a model, half of them record. Callgrind counts the same
steps of each, once they are warm, and the thread that writes apart. A step here is the scheduler's
alone: an engine's has the model's work too, so that recording is a smaller part of it. Prompts are
drawn before the steps, and nothing compares what they decide.

The least count of each kind counts. Python finds a class's attributes by a table whose places
depend on addresses: where two names share a place, a process takes up to 0.6 % more.

With ``--requests`` it counts without vLLM, in a minute, what a finished request costs the recorder:
the call that hands it over, and the thread that writes. Take a release build: a quick one counts
more.
"""

import argparse
import gc
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import count, islice
from operator import itemgetter
from pathlib import Path
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybrid_blocks.tools.profile.loop import Loop

COUNTER = "callgrind_control"
NUM_RUNNING, PROMPT, SHARED, ANSWER = 256, 2000, 500, 200
WARM_UP, STEPS = 210, 60
FEW, MANY = 200, 700
BLOCK_TOKENS = {"full": 16, "hybrid": 528}
STEP_S = 5.6e-3
"""vLLM's scheduler takes these seconds for a step that valgrind does not count."""
PROBED = 5
"""Steps that tell how much slower it is while valgrind counts."""


def main() -> None:
    """Count both, and print what a step takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", default="hybrid", help="full or hybrid (default)")
    parser.add_argument("--level", default="manager", help="off or manager (default)")
    parser.add_argument("--ending", default=".jsonl.zst", help="of the file; .jsonl.zst (default)")
    parser.add_argument("--times", type=int, default=3, help="processes of each kind; 3 (default)")
    parser.add_argument("--requests", action="store_true", help="count finished requests alone")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.requests and arguments.child is not None:
        hand_over(arguments.child, arguments.groups, arguments.ending)
        return
    if arguments.child is not None:
        serve(arguments.groups, arguments.level)
        return
    if arguments.requests:
        few, many = (handed_over(count, arguments) for count in (FEW, MANY))
        print(
            f"a finished request of {PROMPT} + {ANSWER} tokens, {arguments.groups}, "
            f"{arguments.ending}: {(many - few) / (MANY - FEW):,.0f} instructions"
        )
        return
    plain, recorded = (
        least([counted(arguments.groups, arguments.level, ending) for _ in range(arguments.times)])
        for ending in (None, arguments.ending)
    )
    print(
        f"{NUM_RUNNING} running, {arguments.groups}, level {arguments.level}, "
        f"{arguments.ending}; instructions a step of vLLM's scheduler:"
    )
    print(f"  without recording {sum(plain) / STEPS:,.0f}")
    for what, added in (
        ("recording adds to the engine's thread", recorded[0] - plain[0]),
        ("and with the thread that writes", sum(recorded) - sum(plain)),
    ):
        print(f"  {what} {added / STEPS:,.0f} = {added / sum(plain):.2%}")


def least(counts: list[list[int]]) -> list[int]:
    """Return the count with the least instructions of the engine's thread, and print all."""
    print("  engine's thread, a step:", ", ".join(f"{one[0] / STEPS:,.0f}" for one in counts))
    return min(counts, key=itemgetter(0))


def counted(groups: str, level: str, ending: str | None) -> list[int]:
    """Return the instructions of the steps, by thread, that of the engine first."""
    with tempfile.TemporaryDirectory() as folder:
        variables = os.environ | {"HYBRID_BLOCKS": level, "PYTHONHASHSEED": "0"}
        variables.setdefault("VLLM_TARGET_DEVICE", "cpu")
        variables.pop("HYBRID_BLOCKS_RECORD", None)
        if ending is not None:
            variables["HYBRID_BLOCKS_RECORD"] = f"{folder}/traffic{ending}"
        subprocess.run(
            [
                *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes"),
                *(f"--callgrind-out-file={folder}/count", sys.executable, "-W", "ignore"),
                *(__file__, "--child", "0", "--groups", groups, "--level", level),
            ],
            env=variables,
            check=True,
        )
        texts = [file.read_text() for file in sorted(Path(folder).glob("count-*"))]
        return [
            int(total[1]) for text in texts if (total := re.search(r"^totals: (\d+)", text, re.M))
        ]


def handed_over(count: int, arguments: argparse.Namespace) -> int:
    """Return the instructions of a process that records ``count`` requests."""
    options = ("--groups", arguments.groups, "--ending", arguments.ending)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                *("valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/count"),
                *(sys.executable, "-W", "ignore", __file__, "--requests", "--child", str(count)),
                *options,
            ],
            env=os.environ | {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"},
            stderr=subprocess.DEVNULL,
            check=True,
        )
        total = re.search(r"^totals: (\d+)", Path(folder, "count").read_text(), re.M)
        return int(total[1]) if total else 0


def hand_over(count: int, groups: str, ending: str) -> None:
    """Record requests in this process."""
    from hybrid_blocks.recording.content import Content  # noqa: PLC0415
    from hybrid_blocks.recording.recorder import Finished, Recorder  # noqa: PLC0415

    size = BLOCK_TOKENS[groups]
    is_hashed = groups == "full"
    # Each request has hashes of its own: repeated ones would pack to nothing.
    num_blocks = (PROMPT + ANSWER) // size if is_hashed else 0
    draw = Random(0)
    drawn = [[draw.randbytes(32) for _ in range(num_blocks)] for _ in range(MANY)]
    tokens = [[number, *range(1, PROMPT + ANSWER)] for number in range(MANY)]
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder, f"traffic{ending}"), 1 << 30)
        for number, hashes in enumerate(drawn[:count]):
            times = (number + 0.25, number + 0.5, number + 7.25)
            request = (float(number), size, PROMPT, ANSWER, SHARED, hashes, None, None, 0, False)
            content = None if is_hashed else Content(tokens[number], PROMPT + ANSWER)
            recorder.put(Finished(*request, *times, content))
        recorder.close()


def jobs() -> Iterator[tuple[list[int], int]]:
    """Prompts that share their beginning, and answers of one length."""
    draw = Random(0)
    shared = [draw.randrange(100_000) for _ in range(SHARED)]
    for number in count():
        # The first ones end at different steps, as the later ones do.
        output = 1 + ANSWER * number // NUM_RUNNING if number < NUM_RUNNING else ANSWER
        yield shared + [draw.randrange(100_000) for _ in range(PROMPT - SHARED)], output


def serve(groups: str, level: str) -> None:
    """Run the steps in this process, which callgrind watches."""
    from hybrid_blocks.tools.profile.engine import Groups, make_hasher, scheduler_over  # noqa: PLC0415
    from hybrid_blocks.tools.profile.loop import Loop  # noqa: PLC0415
    from hybrid_blocks.tools.profile.workload import Settings  # noqa: PLC0415
    from hybrid_blocks.vllm import attach, metrics, recorder  # noqa: PLC0415
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: PLC0415

    # Once a second the engine writes its own figures: a step in 180, but all that valgrind counts.
    metrics._INTERVAL_S = float("inf")
    attach.register()
    kind = Groups(groups)
    length = PROMPT + ANSWER + 1
    num_blocks = 2 * NUM_RUNNING * len(kind.specs()) * (length // kind.block_size + 4)
    scheduler = scheduler_over(
        kind.config(num_blocks),
        num_requests=NUM_RUNNING,
        max_model_len=length,
        max_num_batched_tokens=8192,
        hash_block_size=kind.block_size,  # as vLLM hashes where all groups have blocks of one size
        scheduler_cls=AsyncScheduler,
    )
    settings = Settings(level=level, groups=groups, requests=NUM_RUNNING, prompt_tokens=PROMPT)
    drawn = iter(list(islice(jobs(), NUM_RUNNING * (2 + (WARM_UP + STEPS) // ANSWER))))
    hasher = make_hasher(kind.block_size)
    loop = Loop(scheduler, drawn, hasher, settings, is_compared=False)
    loop.run(WARM_UP)
    # A collection of all requests takes a quarter of a step, and falls into one process alone.
    gc.collect()
    gc.disable()
    _control("--instr=on")
    loop.run(PROBED)
    _slow_down(_seconds(loop, PROBED) / STEP_S)
    _control("--zero")
    print(f"  {_seconds(loop, STEPS):.2f} s a step while valgrind counts")
    recorder.uninstall()  # Queued lines are written here.
    _control("--instr=off")


def _seconds(loop: "Loop", steps: int) -> float:
    """Run some steps; return what one takes."""
    start = perf_counter()
    loop.run(steps)
    return (perf_counter() - start) / steps


def _slow_down(factor: float) -> None:
    """Lengthen the recorder's times as valgrind lengthens steps: it wakes up as often a step."""
    from hybrid_blocks.recording import record_file, recorder  # noqa: PLC0415

    for module, name in (
        (recorder, "_GATHERED_S"),
        (recorder, "FLUSHED_EVERY_S"),
        (record_file, "FLUSHED_EVERY_S"),
    ):
        setattr(module, name, factor * getattr(module, name))
    # So does a thread that waits for the interpreter.
    sys.setswitchinterval(factor * sys.getswitchinterval())


def _control(switch: str) -> None:
    subprocess.run([COUNTER, switch, str(os.getpid())], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
