"""A copy of the program with the switches of all mutants that compile."""

import json
import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutants.mutant import Mutant
from mutants.switches import MODULE, Switches, blamed, next_arm


@dataclass(frozen=True)
class Program:
    """Files to copy and build: ``paths`` below ``root``, and the tests of ``packages``."""

    root: Path
    paths: tuple[str, ...]
    packages: tuple[str, ...]


@dataclass(frozen=True)
class CompiledTest:
    """A compiled test and the folder that it runs in."""

    executable: Path
    folder: Path


class CannotBuildError(Exception):
    """The copy does not compile, and no mutant is to blame."""


@dataclass
class Build:
    """The tests of a program in which each of ``switched`` can be switched on."""

    tests: list[CompiledTest]
    switched: list[Mutant]
    left_out: list[Mutant]
    """Mutants that have no switch, since the program does not compile with one."""


def build(program: Program, mutants: Sequence[Mutant], folder: Path) -> Build:
    """Compile, leaving out mutants that the compiler refuses until it accepts the others.

    Raises:
        CannotBuildError: with the compiler's words, where the program does not compile anyway.
    """
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    for path in program.paths:
        source, target = program.root / path, copy / path
        target.parent.mkdir(parents=True, exist_ok=True)
        # Times are those of the copy: cargo must not take an older build for this one's.
        if source.is_dir():
            shutil.copytree(source, target, copy_function=shutil.copy)
        else:
            shutil.copy(source, target)
    switched, left_out = list(mutants), list[Mutant]()
    _write(program, switched, left_out, copy)
    while True:
        tests, errors = _compile(program, copy, folder / "target")
        if not errors:
            return Build(tests, switched, left_out)
        refused = set[int]().union(*(_blamed(error, copy) for error in errors))
        if not refused:
            raise CannotBuildError("\n".join(str(error["rendered"]) for error in errors))
        left_out += [mutant for mutant in switched if mutant.number in refused]
        touched = {mutant.file for mutant in left_out if mutant.number in refused}
        switched = [mutant for mutant in switched if mutant.number not in refused]
        _write(program, switched, left_out, copy, touched)


def _write(
    program: Program,
    switched: list[Mutant],
    left_out: list[Mutant],
    copy: Path,
    files: set[str] | None = None,
) -> None:
    """Write ``files``, or all that have mutants, with the switches of ``switched``."""
    by_file = defaultdict[str, list[Mutant]](list)
    for mutant in switched:
        by_file[mutant.file].append(mutant)
    roots = {_crate_root(file) for file in by_file}
    for file in (by_file.keys() | roots) if files is None else files:
        source = Switches((program.root / file).read_bytes(), by_file[file])
        for mutant in source.unplaced:
            switched.remove(mutant)
            left_out.append(mutant)
        (copy / file).write_bytes(source.text() + MODULE * (file == _crate_root(file)))


def _crate_root(file: str) -> str:
    return file[: file.index("src/")] + "src/lib.rs"


def _compile(
    program: Program, copy: Path, target: Path
) -> tuple[list[CompiledTest], list[dict[str, Any]]]:
    """Return the compiled tests, or the compiler's errors."""
    command = ["cargo", "test", "--no-run", "--lib", "--tests", "--message-format=json"]
    command += [f"--package={package}" for package in program.packages]
    environment = os.environ | {
        "CARGO_TARGET_DIR": str(target.resolve()),
        "CARGO_PROFILE_DEV_DEBUG": "0",
        "RUSTFLAGS": "--cap-lints=allow",  # a mutant may be dead code or overflow
    }
    run = subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False)
    tests, errors = [], []
    for line in run.stdout.splitlines():
        said = json.loads(line)
        message = said.get("message")
        if said.get("executable") and said["profile"]["test"]:
            folder = Path(said["manifest_path"]).parent
            tests.append(CompiledTest(Path(said["executable"]), folder))
        elif message and message["level"] == "error" and message["spans"]:
            errors.append(message)
    if run.returncode and not errors:
        raise CannotBuildError(run.stderr.decode())
    return tests, errors


def _blamed(error: dict[str, Any], copy: Path) -> set[int]:
    """Return the mutants that an error points at, first where it points first."""
    for span in sorted(error["spans"], key=lambda span: not span["is_primary"]):
        file = copy / span["file_name"]
        if file.is_file():
            text, start, end = file.read_bytes(), span["byte_start"], span["byte_end"]
            few_arms = (error["code"] or {}).get("code") == "E0004"
            if found := next_arm(text, start) if few_arms else blamed(text, start, end):
                return found
    return set()
