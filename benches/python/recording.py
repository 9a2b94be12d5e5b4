"""Instructions that ``HYBRID_BLOCKS_RECORD`` adds to a step; needs Debian's valgrind.

Two processes run vLLM's scheduler without a model, one of them records. Callgrind counts the same
steps of both, once they are warm, and the thread that writes apart. A step here is the scheduler's
alone: an engine's has the model's work too, so that recording is a smaller part of it. Prompts are
drawn before the steps, and nothing compares what they decide.

With ``--requests`` it counts without vLLM, in a minute, what a finished request costs the recorder:
the call that hands it over, and the thread that writes. Take a release build: a quick one counts
more.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from random import Random
from time import perf_counter

COUNTER = "callgrind_control"
NUM_RUNNING, PROMPT, SHARED, ANSWER = 256, 2000, 500, 200
WARM_UP, STEPS = 210, 60
FEW, MANY = 200, 700
BLOCK_TOKENS = {"full": 16, "hybrid": 528}
SLOWER = 40
"""How many times as long a step takes while valgrind counts it: 0.25 s instead of 5.6 ms."""


def main() -> None:
    """Count both, and print what a step takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", default="hybrid", help="full or hybrid (default)")
    parser.add_argument("--level", default="manager", help="off or manager (default)")
    parser.add_argument("--ending", default=".jsonl.zst", help="of the file; .jsonl.zst (default)")
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
        counted(arguments.groups, arguments.level, ending) for ending in (None, arguments.ending)
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
    from hybrid_blocks.trace.recorder import Finished, Recorder  # noqa: PLC0415

    size = BLOCK_TOKENS[groups]
    # Each request has hashes of its own: repeated ones would pack to nothing.
    num_blocks = (PROMPT + ANSWER) // size
    draw = Random(0)
    drawn = [[draw.randbytes(32) for _ in range(num_blocks)] for _ in range(MANY)]
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder, f"traffic{ending}"), 1 << 30)
        for number, hashes in enumerate(drawn[:count]):
            times = (number + 0.25, number + 0.5, number + 7.25)
            request = (float(number), size, PROMPT, ANSWER, SHARED, hashes, None, None, 0, False)
            recorder.put(Finished(*request, *times))
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
    from hybrid_blocks.profile.engine import Groups, make_hasher, scheduler_over  # noqa: PLC0415
    from hybrid_blocks.profile.loop import Loop  # noqa: PLC0415
    from hybrid_blocks.profile.workload import Settings  # noqa: PLC0415
    from hybrid_blocks.trace import record_file  # noqa: PLC0415
    from hybrid_blocks.trace import recorder as traffic  # noqa: PLC0415
    from hybrid_blocks.vllm import plugin, recorder  # noqa: PLC0415
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: PLC0415

    # The recorder's times are as much longer as the steps, so that it wakes up as often a step.
    for module, name in (
        (traffic, "_GATHERED_S"),
        (traffic, "FLUSHED_EVERY_S"),
        (record_file, "FLUSHED_EVERY_S"),
    ):
        setattr(module, name, SLOWER * getattr(module, name))
    # So does a thread that waits for the interpreter.
    sys.setswitchinterval(SLOWER * sys.getswitchinterval())
    plugin.register()
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
    _control("--instr=on")
    start = perf_counter()
    loop.run(STEPS)
    print(f"  {(perf_counter() - start) / STEPS:.2f} s a step while valgrind counts")
    recorder.uninstall()  # writes what waits
    _control("--instr=off")


def _control(switch: str) -> None:
    subprocess.run([COUNTER, switch, str(os.getpid())], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
