"""A fixture: a line of JSON for each life and each of its steps, compressed."""

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from .recorder import Step

FOLDER = Path(__file__).parents[3] / "rust" / "core" / "tests" / "fixtures"


def path(release: str, part: str = "") -> Path:
    """Return where lives of a release are kept: ``vllm-0.33.jsonl.gz``, ``vllm-0.33-ring...``."""
    return FOLDER / f"vllm-{release}{part}.jsonl.gz"


def write(file: Path, version: str, lives: Iterable[list[Step]]) -> None:
    """Write lives, after a line with vLLM's version and the numbers of lives and steps."""
    lives = list(lives)
    num_steps = sum(len(life) - 1 for life in lives)
    head = {"vllm": version, "num_lives": len(lives), "num_steps": num_steps}
    lines = [head, *(line for life in lives for line in life)]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    file.parent.mkdir(parents=True, exist_ok=True)
    # Without a time in it, the same lives make the same file.
    file.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


def read(file: Path) -> tuple[Step, Iterator[list[Step]]]:
    """Return the first line, and the lives."""
    lines = iter(gzip.decompress(file.read_bytes()).splitlines())
    return json.loads(next(lines)), _lives(json.loads(line) for line in lines)


def _lives(lines: Iterable[Step]) -> Iterator[list[Step]]:
    life: list[Step] = []
    for line in lines:
        if "life" in line and life:
            yield life
            life = []
        life.append(line)
    if life:
        yield life
