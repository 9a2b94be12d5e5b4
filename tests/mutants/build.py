"""A copy of the program with the switches of all mutants that compile."""

import json
import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mutants.mutant import Mutant
from mutants.switches import MODULE, Switches, blamed, next_arm

ROOT = Path(__file__).parents[2]
CORE = ("hybrid-blocks", "hybrid-blocks-hash")
PACKAGES = (*CORE, "hybrid-blocks-ops")
PATHS = ("Cargo.toml", "Cargo.lock", "rust", "benches/rust")

Test = tuple[Path, Path]
"""A compiled test and the folder that it runs in."""


class CannotBuildError(Exception):
    """The copy does not compile, and no mutant is to blame."""


def build(mutants: Sequence[Mutant], folder: Path) -> tuple[list[Test], list[Mutant]]:
    """Compile, leaving out mutants that the compiler refuses until it accepts the others.

    Return the tests, and the mutants that can be switched on in them.

    Raises:
        CannotBuildError: with the compiler's words, where the program does not compile anyway.

    """
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    for path in PATHS:
        source, target = ROOT / path, copy / path
        target.parent.mkdir(parents=True, exist_ok=True)
        # Times are those of the copy: cargo must not take an older build for this one's.
        if source.is_dir():
            shutil.copytree(source, target, copy_function=shutil.copy)
        else:
            shutil.copy(source, target)
    switched = list(mutants)
    _write(switched, copy)
    while True:
        tests, errors = _compile(copy, folder / "target")
        if not errors:
            return tests, switched
        refused = set[int]().union(*(_blamed(error, copy) for error in errors))
        if not refused:
            raise CannotBuildError("\n".join(str(error["rendered"]) for error in errors))
        touched = {mutant.file for mutant in switched if mutant.number in refused}
        switched = [mutant for mutant in switched if mutant.number not in refused]
        _write(switched, copy, touched)


def _write(switched: list[Mutant], copy: Path, files: set[str] | None = None) -> None:
    """Write ``files``, or all that have mutants, with the switches of ``switched``."""
    by_file = defaultdict[str, list[Mutant]](list)
    for mutant in switched:
        by_file[mutant.file].append(mutant)
    roots = {_crate_root(file) for file in by_file}
    for file in (by_file.keys() | roots) if files is None else files:
        source = Switches((ROOT / file).read_bytes(), by_file[file])
        for mutant in source.unplaced:
            switched.remove(mutant)
        (copy / file).write_bytes(source.text() + MODULE * (file == _crate_root(file)))


def _crate_root(file: str) -> str:
    return file[: file.index("src/")] + "src/lib.rs"


def _compile(copy: Path, target: Path) -> tuple[list[Test], list[dict[str, Any]]]:
    """Return the compiled tests, or the compiler's errors."""
    command = ["cargo", "test", "--no-run", "--lib", "--tests", "--message-format=json"]
    command += [f"--package={package}" for package in PACKAGES]
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
            tests.append((Path(said["executable"]), Path(said["manifest_path"]).parent))
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
