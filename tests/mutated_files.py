"""Valid traces and logs, changed at random, for the readers of commands.

`make campaigns` reads many of them. A fault names the number of its file, and
``--first NUMBER --files 1`` reads that file again.
"""

import argparse
import contextlib
import faulthandler
import gzip
import io
import json
import math
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, Final

import made_traces
import msgspec
import numpy as np
import zstandard
from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.recording.recorder import Finished, Recorder
from hybrid_blocks.tools.cli import app
from hybrid_blocks.tools.cli.output import LONGEST_ERROR, print_error
from hybrid_blocks.tools.cli.plan_log import _read
from hybrid_blocks.tools.cli.replay_run import read_requests
from hybrid_blocks.tools.read.log_report import report_log
from hybrid_blocks.tools.trace import FORMATS, OnError, Trace, measure_sharing
from log_writer import write_log
from process import python
from typer.testing import CliRunner

LOG: Final = "log"
SECONDS: Final = 15
"""CPU time for one file; nearly all take milliseconds."""
MEMORY: Final = 1 << 30
"""Bytes that a reader may map beyond an idle process; a bomb unpacks to less before it ends."""
EACH_COMMAND: Final = 16
"""One file in that many goes through the whole command as well."""
EACH_PROCESS: Final = 256
"""One file in that many goes through a process of the command."""

COUNTED: Final = (
    *("files", "results", "lines passed over", "errors said", "commands", "processes"),
    *("tracebacks", "faults"),
)

ROWS: Final = json.loads((Path(__file__).parent / "plan/logged_capacity.json").read_text())
LINE_A_REQUEST: Final = frozenset({"mooncake", "llmservingsim", "azure", "recorded"})
SHAREGPT: Final = [
    {"id": str(at), "conversations": [
        {"from": "human", "value": "Which layers keep a state? " * 20},
        {"from": "gpt", "value": f"Recurrent ones, {at} times. " * (at + 1)},
        {"from": "human", "value": "Thanks, Ä\u2028."}, {"from": "gpt", "value": "\u00e9"},
    ]}
    for at in range(6)
]  # fmt: skip


def _recorded(path: Path) -> None:
    recorder = Recorder(path, 1 << 20)
    for number in range(20):
        hashes = [b"%d-%d" % (number % 3, block) for block in range(5)]
        sizes: Any = {"prompt_tokens": 71, "output_tokens": 9, "found_tokens": 0}
        sizes |= {"block_tokens": 16, "priority": 0}
        about: Any = {"session": f"session {number % 2}", "adapter": None}
        recorder.put(Finished(float(number), hashes=hashes, aborted=False, **sizes, **about))
    recorder.close()


@cache
def valid() -> dict[str, list[bytes]]:
    """Files of each format as their writers make them, and logs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.jsonl")
        made = {
            "mooncake": partial(made_traces.mooncake, path, 12),
            "conversations": partial(made_traces.conversations, path, 5),
            "llmservingsim": partial(made_traces.llmservingsim, path, 6),
            "azure": partial(made_traces.azure, path, 20),
        }
        found = {}
        for name, make in made.items():
            make()
            found[name] = [gzip.decompress(path.read_bytes())]
            path.unlink()
        _recorded(path)
        found["recorded"] = [path.read_bytes()]
    lines = "".join(json.dumps(it, ensure_ascii=False) + "\n" for it in SHAREGPT)
    found["sharegpt"] = [json.dumps(SHAREGPT).encode(), lines.encode()]
    assert found.keys() == FORMATS.keys()
    return found | {LOG: ["".join(write_log(row)).encode() for row in ROWS]}


VALUE: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?|\b(?:true|false|null|None|True)\b')
NUMBERS: Final = [
    *(b"2147483648", b"2147483647", b"9223372036854775808", b"9" * 5000, b"-1", b"-0", b"0"),
    *(b"1e400", b"-1e400", b"1e308", b"1e-400", b"NaN", b"nan", b"Infinity", b"inf", b"0.5"),
    *(b"1.2.3", b"1..2", b".", b",", b"", b"0x10", b"1_000", "\u0661".encode(), b"+1", b"00"),
]
VALUES: Final = [
    *(b"null", b'"x"', b'""', b"[[1]]", b'{"a": 1}', b"[]", b"{}", b"true", b"[" * 100_000),
    *(rb'"\ud800"', b"\x00", b"\xff", "1,2".encode("utf-16"), b"\x1b]0;x\x07", b"\x1b[2J"),
    *(b"0001-01-01 00:00:00+14:00", b'"9999-12-31T23:59:59-14:00"', b"'", b'"', b"{" * 3000),
    *(b'"a":' * 3000, b"x" * 200_000, b"(" * 3000, b'"' + b"\\" * 3001, b"\r", "\u202e".encode()),
]


def _in_place(
    random: Random, text: bytes, values: list[bytes], pattern: re.Pattern[bytes]
) -> bytes:
    places = list(pattern.finditer(text))
    if not places:
        return text
    place = random.choice(places)
    return text[: place.start()] + random.choice(values) + text[place.end() :]


def _byte(random: Random, text: bytes) -> bytes:
    at = random.randrange(len(text) + 1)
    return text[:at] + bytes([random.randrange(256)]) + text[at + random.randrange(2) :]


def _bit(random: Random, text: bytes) -> bytes:
    changed = bytearray(text or b" ")
    changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _cut(random: Random, text: bytes) -> bytes:
    begin, end = sorted(random.randrange(len(text) + 1) for _ in range(2))
    return random.choice((text[:end], text[begin:], text[:begin] + text[end:]))


def _lines(random: Random, text: bytes) -> bytes:
    lines = text.splitlines(keepends=True) or [b""]
    one, other = (random.randrange(len(lines)) for _ in range(2))
    match random.randrange(6):
        case 0:
            lines[one : one + 1] = []
        case 1:
            lines[one:one] = [lines[other]] * random.choice((1, 2, 300))
        case 2:
            lines[one], lines[other] = lines[other], lines[one]
        case 3:
            lines[one] = lines[one].rstrip(b"\n")
        case 4:
            middle = len(lines[one]) // 2
            lines[one] = lines[one][:middle] + b"\n" + lines[one][middle:]
        case _:
            lines = lines[::-1]
    return b"".join(lines)


def _mixed(random: Random, text: bytes) -> bytes:
    """Put lines of another file behind some of its own."""
    other = random.choice(valid()[random.choice([*valid()])])
    at = text.find(b"\n", random.randrange(len(text) + 1)) + 1
    return text[:at] + other[: random.randrange(len(other))] + text[at:]


def _written(random: Random, text: bytes) -> bytes:
    """Write the same text in another way."""
    encoding = random.choice(("utf-16", "utf-32", "utf-7"))
    return random.choice(
        (
            text.replace(b"\n", b"\r\n"),
            text.replace(b"\n", b"\r"),
            text.replace(b"\n", b"\n\x00\n"),
            text.decode(errors="replace").encode(encoding),
            b"\xef\xbb\xbf" + text,
            b"[" + text.strip().replace(b"\n", b",") + random.choice((b"]", b"", b",]")),
            b" \t\n" * random.randrange(2000) + text,
            b"",
        )
    )


CHANGES: Final[tuple[tuple[int, Callable[[Random, bytes], bytes]], ...]] = (
    (4, partial(_in_place, values=NUMBERS, pattern=re.compile(rb"-?\d+(?:[.,]\d+)*"))),
    (4, partial(_in_place, values=NUMBERS + VALUES, pattern=VALUE)),
    (2, _byte),
    (2, _bit),
    (2, _cut),
    (3, _lines),
    (1, _mixed),
    (1, _written),
)
"""Each change with how often it is made."""


ZSTD: Final = b"\x28\xb5\x2f\xfd"
"""How a file of zstd begins."""


def _zstd(text: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(text)


def bomb(text: bytes, times: int) -> bytes:
    """Return a frame of zstd that repeats a byte: 4 bytes for 128 KiB."""
    blocks = [1 << 17 << 3 | 1 << 1] * times
    blocks[-1] |= 1
    packed = b"".join(block.to_bytes(3, "little") + text for block in blocks)
    return ZSTD + bytes([0, (17 - 10) << 3]) + packed


def _packed(random: Random, text: bytes) -> bytes:
    match random.randrange(16):
        case 0 | 1 as which:
            return (gzip.compress, _zstd)[which](text)
        case 2 | 3 as which:
            packed = (gzip.compress, _zstd)[which - 2](text)
            return random.choice((_byte, _bit, _cut))(random, packed)
        case 4 if not random.randrange(4):
            many = bomb(random.choice((b"x", b"\n", b" ", b"[", b"\x00", b"9")), 4000)
            return random.choice((many, _zstd(text) + many, gzip.compress(b"x\n" * (1 << 20))))
    return text


def mutated(number: int) -> tuple[str, bytes]:
    """Return the format and the content of a file; equal numbers give equal files."""
    random = Random(number)
    kind = random.choice([*valid(), LOG, LOG])
    text = random.choice(valid()[kind])
    weights, changes = zip(*CHANGES, strict=True)
    for change in random.choices(changes, weights, k=random.choice((1, 1, 2, 3, 6))):
        text = change(random, text)
    return kind, _packed(random, text)


class FaultError(AssertionError):
    """A reader that did not do as it should."""


def check(is_right: object, what: str) -> None:
    """Raise a fault unless it is right."""
    if not is_right:
        raise FaultError(what)


def check_error(text: str) -> None:
    """Check that an error is one line that can be read."""
    check(len(text.splitlines()) == 1, f"an error of several lines: {text[:300]!r}")
    check(15 < len(text) < LONGEST_ERROR, f"an error of {len(text)} characters: {text[:300]!r}")


def check_trace(trace: Trace, content: bytes, kind: str) -> None:
    """Check that a trace has sane numbers and counts what it left out."""
    check(len(trace), "no request")
    check(np.isfinite(trace.arrival).all() and (trace.arrival >= 0).all(), "an arrival")
    for lengths in (trace.prompt_tokens, trace.output_tokens):
        check((lengths >= 1).all(), "a length below 1")
    check((trace.follows < np.arange(len(trace))).all(), "a request follows a later one")
    check((trace.span_first >= 0).all() and (trace.span_count >= 1).all(), "a span")
    check(trace.total_tokens.sum() == trace.span_count.sum(dtype=np.int64), "tokens of spans")
    check(list(trace.skipped) == sorted(set(trace.skipped)), "lines that were skipped")
    sharing = msgspec.to_builtins(measure_sharing(trace, 16))
    check_numbers(sharing)
    text = content.removeprefix(b"\xef\xbb\xbf").lstrip()
    if kind in LINE_A_REQUEST and not text.startswith((b"[", b"\x1f\x8b", ZSTD)):
        lines = [line.strip() for line in text.split(b"\n") if line.strip()]
        headers = sum(line.startswith(b"TIMESTAMP,") for line in lines) if kind == "azure" else 0
        left_out = len(lines) - len(trace) - trace.damaged_lines
        check(0 <= left_out <= headers, f"{left_out} lines are neither requests nor skipped")


def check_numbers(value: Any, where: str = "$") -> None:
    """Check that each number of a report is one, and none but a gain is negative."""
    if isinstance(value, dict):
        for name, item in value.items():
            check_numbers(item, f"{where}.{name}")
    elif isinstance(value, (list, tuple)):
        for item in value:
            check_numbers(item, f"{where}[]")
    elif isinstance(value, (int, float)):
        is_gain = ".gains[]." in where
        check(math.isfinite(value) and (value >= 0 or is_gain), f"{where} is {value}")


def read(number: int, folder: Path) -> Counter[str]:
    """Read a file as its command does, and return counts of what came of it."""
    random = Random(-number)
    kind, content = mutated(number)
    path = folder / "file"
    path.write_bytes(content)
    counts = Counter(files=1)
    try:
        if kind == LOG:
            log = _read(path)
            counts["lines passed over"] += log.num_lines - log.num_read
            check_numbers(msgspec.to_builtins(report_log(log, None, {})))
        else:
            on_error: OnError = random.choice(("skip", "skip", "raise"))
            named = random.choice(("auto", kind))
            with contextlib.redirect_stderr(io.StringIO()):
                trace = read_requests(path, named, on_error, None)
            check_trace(trace, content, kind if named == kind else "auto")
            counts["lines passed over"] += trace.damaged_lines
        counts["results"] += 1
    except HybridBlocksError as error:
        with contextlib.redirect_stderr(io.StringIO()) as told:
            print_error(error)
        check_error(told.getvalue().removesuffix("\n"))
        counts["errors said"] += 1
    words = ["plan", "--log", str(path)]
    if kind != LOG:
        words = ["replay", str(path), "--on-error", "skip", "--memory", "1GiB", "--limit", "20"]
    if number % EACH_COMMAND == 0:
        result = CliRunner().invoke(app, words)
        if not isinstance(result.exception, SystemExit | None):
            raise result.exception
        check_output(result.exit_code, result.stdout, result.stderr)
        counts["commands"] += 1
    if number % EACH_PROCESS == 0:
        ran = python("-m", "hybrid_blocks", *words, timeout=20 * SECONDS)
        check_output(ran.returncode, ran.stdout, ran.stderr)
        counts["processes"] += 1
    return counts


def check_output(code: int, out: str, err: str) -> None:
    """Check what a command wrote."""
    check("Traceback" not in err, err[-2000:])
    check(code in {0, 2}, f"exit code {code}: {err[-500:]}")
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    check(len(errors) == (code == 2), f"exit code {code}: {err[-500:]!r}")
    check(all(char.isprintable() or char == "\n" for char in out), "an escape sequence in a table")
    check(code == 2 or not re.search(r"\bnan\b|\binf\b", out), f"no number: {out[:2000]}")
    for line in errors:
        check_error(line)


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """End a file that takes too long."""

    def end(*_: object) -> None:
        raise FaultError(f"no end within {SECONDS} s")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    # A loop within compiled code takes no signal, and a reader that waits takes no CPU time.
    faulthandler.dump_traceback_later(20 * SECONDS, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def campaign(numbers: Iterable[int]) -> Counter[str]:
    """Read files one after another; a fault is printed and counted."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            begin = time.process_time()
            try:
                with limited():
                    counts.update(read(number, Path(folder)))
            except Exception as error:  # noqa: BLE001 - a fault is what is looked for
                counts["faults" if isinstance(error, FaultError) else "tracebacks"] += 1
                kind, content = mutated(number)
                print(f"file {number}, {kind}, {content[:80]!r}:\n{traceback.format_exc()}")
            taken = round(1e3 * (time.process_time() - begin))
            counts["slowest"] = max(counts["slowest"], taken)
    return counts


def _begin() -> None:
    """Bound the memory of a process that reads."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))


def main() -> int:
    """Read files in a few processes, and print one line of counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=12_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    numbers = range(asked.first, asked.first + asked.files)
    counts = Counter(dict.fromkeys(COUNTED, 0))
    slowest = 0
    with ProcessPoolExecutor(asked.workers, initializer=_begin) as workers:
        parts = [numbers[at : at + 50] for at in range(0, len(numbers), 50)]
        for found in workers.map(campaign, parts):
            slowest = max(slowest, found.pop("slowest"))
            counts.update(found)
    told = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    print(f"mutated files: {told}, slowest {slowest:,} ms")
    return int(counts["files"] < asked.files)


if __name__ == "__main__":
    sys.exit(main())
