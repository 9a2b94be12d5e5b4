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


def parse(listed: Sequence[dict[str, Any]]) -> list[Mutant]:
    """Return what ``cargo mutants --list --json`` printed; numbers count from 1."""
    return [
        Mutant(
            number,
            entry["name"],
            entry["file"],
            entry["genre"],
            entry["replacement"],
            *((entry["span"][it]["line"], entry["span"][it]["column"]) for it in ("start", "end")),
        )
        for number, entry in enumerate(listed, 1)
    ]


def list_all(tool: Path, root: Path, packages: Sequence[str]) -> list[Mutant]:
    """Ask `cargo-mutants` for all changes of some packages, in one list: numbers are switches."""
    command = [str(tool), "mutants", "--list", "--json", *(f"--package={it}" for it in packages)]
    listed = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE).stdout
    return parse(json.loads(listed))


def sample(mutants: Sequence[Mutant], parts: int, seed: str) -> list[Mutant]:
    """Draw one in ``parts``; the same ones for the same seed."""
    drawn = random.Random(seed).sample(mutants, -(-len(mutants) // parts))
    return sorted(drawn, key=lambda mutant: mutant.number)
