"""One change of a program, as `cargo-mutants` lists it."""

import json
import random
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Place = tuple[int, int]
"""Line and column, both from 1; a column counts characters."""


@dataclass(frozen=True)
class Mutant:
    """A change: ``replacement`` replaces the text from ``start`` to ``end``."""

    number: int
    name: str
    file: str
    genre: str
    replacement: str
    start: Place
    end: Place

    @property
    def nameless(self) -> str:
        """The name without line and column, which move with every edit above them."""
        return re.sub(r":\d+:\d+: ", ": ", self.name)


def list_all(tool: Path, root: Path, packages: Sequence[str]) -> list[Mutant]:
    """Ask `cargo-mutants` for all changes of packages; numbers count from 1."""
    command = [str(tool), "mutants", "--list", "--json", *(f"--package={it}" for it in packages)]
    listed = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE).stdout
    return [_of(entry, number) for number, entry in enumerate(json.loads(listed), 1)]


def _of(entry: dict[str, Any], number: int) -> Mutant:
    about = (entry[name] for name in ("name", "file", "genre", "replacement"))
    sides = (entry["span"][side] for side in ("start", "end"))
    return Mutant(number, *about, *((side["line"], side["column"]) for side in sides))


def sample(mutants: Sequence[Mutant], parts: int, seed: str) -> list[Mutant]:
    """Draw one in ``parts``; the same ones for the same seed."""
    drawn = random.Random(seed).sample(mutants, -(-len(mutants) // parts))
    return sorted(drawn, key=lambda mutant: mutant.number)
