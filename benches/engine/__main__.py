"""vLLM's engine core without a card: tokens a second, first token and time a token of each side.

    make bench-engine ARGS="steps clock --turns 3"

vLLM's engine core, its asynchronous scheduler and all plugins run as they are. Their worker
computes nothing and answers when a card's step would end. Engines of all sides take turns, and
the record holds the medians. By default time is that of a core without other work: the CPU time of
the process and what the card takes. ``--clock wall`` takes the machine's time instead.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import _test_folders  # noqa: F401
from cases import MEMORY, RUNNING, SIDES, Cell, Group, groups
from clocks import CLOCKS

RECORD = Path(__file__).parents[1] / "record"
CHECK, SERVER = "check", "server"
CHECKED = Group(CHECK, "LFM2-1.2B", SIDES, (), gib=4)
NUM_CHECKED = 200
ARRIVING: Cell = {"step": "Qwen3.5-27B/H100-80GB/1", "load": "conversations", "requests": 60}
Row = dict[str, Any]
_fork = multiprocessing.get_context("fork")


def pose() -> None:
    """Import vLLM as on a card, so that engines are forks of this process."""
    import null_card  # noqa: PLC0415 - imports vLLM

    null_card.pose()
    import core  # noqa: F401, PLC0415


def _engine(pipe: Any, group: Group, side: str) -> None:
    """Make an engine, and measure the cells that come through a pipe."""
    import core  # noqa: PLC0415 - after `pose`

    os.environ |= group.sides[side] | {MEMORY: str(group.gib)}
    os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"  # some fields leave the length out
    with tempfile.TemporaryDirectory() as folder:
        engine = core.Engine(core.write_model(group.model, Path(folder)))
    pipe.send(engine.about)
    while (cell := pipe.recv()) is not None:
        pipe.send(engine.measure(cell))


@contextmanager
def _forked(group: Group, side: str) -> Iterator[Callable[[Cell], Row]]:
    """Run an engine of a side in a fork of this process; yield what measures a cell there."""
    ours, theirs = _fork.Pipe()
    process = _fork.Process(target=_engine, args=(theirs, group, side))
    process.start()
    theirs.close()
    print(f"{group.model}, {side}: {ours.recv()}", flush=True)

    def measure(cell: Cell) -> Row:
        ours.send(cell)
        return ours.recv()

    try:
        yield measure
    finally:
        ours.send(None)
        process.join()


@contextmanager
def _running(group: Group, side: str) -> Iterator[Callable[[Cell], Row]]:
    """Run an engine, or a server; yield what measures a cell there."""
    if group.part != SERVER:
        with _forked(group, side) as measure:
            yield measure
        return
    import served  # noqa: PLC0415 - imports a tokenizer

    with (
        tempfile.TemporaryDirectory() as folder,
        served.serving(group, side, Path(folder)) as measure,
    ):
        yield measure


def measured(group: Group, options: argparse.Namespace) -> Iterator[Row]:
    """Measure the cells of a group, its sides in turns; yield the medians."""
    with ExitStack() as stack:
        engines = {side: stack.enter_context(_running(group, side)) for side in group.sides}
        clocks = ["wall"] if group.part == SERVER else options.clock
        for cell in (it | {"clock": clock} for it in group.cells for clock in clocks):
            found: dict[str, list[Row]] = {side: [] for side in engines}
            for _, side in product(range(options.turns), engines):
                found[side].append(engines[side](cell | {"seconds": options.seconds}))
            for side, rows in found.items():
                about = {"part": group.part, "model": group.model, "gib": group.gib}
                about |= {"side": side, **cell}
                medians = {name: _median([row[name] for row in rows]) for name in rows[0]}
                speeds = [row["tokens_s"] for row in rows]
                spread = round(max(speeds) / min(speeds) - 1, 3)
                about |= medians | {"turns": len(rows), "spread": spread}
                yield about | {"machine_load": round(os.getloadavg()[0], 1)}


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(f"{statistics.median(known):.4g}") if known else None


def check() -> None:
    """Serve some requests at each side, and print what came back as JSON."""
    pose()
    for side in CHECKED.sides:
        with _forked(CHECKED, side) as measure:
            cell = {"step": "8", "count": NUM_CHECKED, "clock": "virtual"}
            arriving = measure(ARRIVING | {"clock": "virtual"})
            print(json.dumps({"side": side, **measure(cell), "arriving": arriving}))


def keep(row: Row, path: Path) -> None:
    """Put a row into the record, in place of one of the same case."""
    held = json.loads(path.read_bytes()) if path.exists() else {"rows": []}
    cpus = (it for it in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in it)
    command = ("git", "rev-parse", "--short", "HEAD")
    held |= {
        "commit": subprocess.run(command, check=True, capture_output=True, text=True).stdout[:-1],
        "cpu": next(cpus, "?: ?").split(": ")[1],
        "vllm": version("vllm"),
    }
    rows = [it for it in held.pop("rows") if _key(it) != _key(row)] + [row]
    lines = ",\n".join(map(json.dumps, rows))
    path.write_text(f'{json.dumps(held)[:-1]}, "rows": [\n{lines}\n]}}\n')


def _key(row: Row) -> list[Any]:
    names = ("part", "model", "gib", "clock", "side", "step", "running", "rate", "load")
    return [row.get(name) for name in names]


def _line(row: Row) -> str:
    return " ".join(f"{key}={value}" for key, value in row.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parts = list(dict.fromkeys(group.part for group in groups(RUNNING)))
    parser.add_argument("parts", nargs="*", choices=[*parts, CHECK], default=parts)
    parser.add_argument("--models", nargs="+", help="of the chosen parts")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each window")
    parser.add_argument("--running", type=int, nargs="+", default=RUNNING)
    parser.add_argument("--clock", nargs="+", choices=CLOCKS, default=["alone"])
    path = RECORD / f"{datetime.now(UTC):%Y-%m-%d}-engine.json"
    parser.add_argument("--record", type=Path, default=path, help="file of the rows")
    options = parser.parse_args()
    if CHECK in options.parts:
        check()
        return
    chosen = [
        group
        for group in groups(tuple(options.running))
        if group.part in options.parts and group.model in (options.models or [group.model])
    ]
    if {group.part for group in chosen} != {SERVER}:
        pose()
    for group in chosen:
        for row in measured(group, options):
            print(_line(row), flush=True)
            keep(row, options.record)


if __name__ == "__main__":
    main()
