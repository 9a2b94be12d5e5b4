"""All benchmarks: check the results, measure, print one table, and keep a dated record."""

import argparse
import datetime
import importlib.metadata
import io
import os
import platform
import subprocess
from pathlib import Path

import msgspec
from _rows import Row, show, table
from _sections import SECTIONS
from hybrid_blocks import build_info
from rich.console import Console

RECORD = Path(__file__).parents[1] / "record"


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and the versions that figures depend on, apart from the code."""

    cpu: str
    cores: int
    memory_gib: float
    load: float
    system: str
    versions: dict[str, str]
    cpu_features: list[str]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One run of all benchmarks."""

    date: str
    commit: str
    machine: Machine
    rows: dict[str, list[Row]]


def machine() -> Machine:
    """Describe the machine, without its name."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    models = [line.split(":")[1].strip() for line in cpuinfo.splitlines() if "model name" in line]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    rustc = output("rustc", "--version").split()[1]
    versions = {"python": platform.python_version(), "rustc": rustc}
    versions |= {name: importlib.metadata.version(name) for name in ("hybrid-blocks", "numpy")}
    versions |= {name: importlib.metadata.version(name) for name in ("vllm", "torch")}
    return Machine(
        cpu=models[0] if models else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(pages / 2**30, 1),
        load=round(os.getloadavg()[0], 2),
        system=f"{platform.system()} {platform.machine()}",
        versions=versions,
        cpu_features=build_info()["cpu_features"],
    )


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit() -> str:
    """Return the commit that was measured, and whether there was more than that."""
    changed = output("git", "status", "--porcelain", "--untracked-files=no")
    return output("git", "rev-parse", "--short", "HEAD") + (" and changes" if changed else "")


def keep(record: Record) -> Path:
    """Write the record as JSON and as a table to read."""
    RECORD.mkdir(exist_ok=True)
    path = RECORD / f"{record.date}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
    text = io.StringIO()
    console = Console(file=text, width=120)
    about = record.machine
    console.print(f"{record.date}, commit {record.commit}, load at the start {about.load}")
    console.print(f"{about.cpu}, {about.cores} cores, {about.memory_gib} GiB, {about.system}")
    console.print(", ".join(f"{name} {version}" for name, version in about.versions.items()))
    for title, rows in record.rows.items():
        console.print(table(title, rows))
    path.with_suffix(".txt").write_text(text.getvalue(), encoding="utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-record", action="store_true", help="print the table only")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="measure a section only")
    arguments = parser.parse_args()
    about = machine()
    rows = {}
    for title in arguments.only or SECTIONS:
        rows[title] = SECTIONS[title]()
        show(title, rows[title])
    if not arguments.no_record:
        now = datetime.datetime.now(tz=datetime.UTC)
        part = "".join(f"-{title.replace(' ', '-')}" for title in arguments.only or ())
        record = Record(date=f"{now:%Y-%m-%d}{part}", commit=commit(), machine=about, rows=rows)
        print(f"written to {keep(record)}")
    missed = [row.name for section in rows.values() for row in section if row.ok is False]
    if missed:
        print(f"{len(missed)} targets missed: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
