"""Request lengths of a recorded workload, for the mix of ``--trace``."""

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import msgspec

from hybrid_blocks.model import PlanError

_FIELDS: Final = (
    ("input_length", "output_length"),
    ("input_toks", "output_toks"),
    ("in", "out"),
    ("ContextTokens", "GeneratedTokens"),
)
"""Names of prompt and output tokens in the public formats."""


def read_lengths(path: Path) -> list[int]:
    """Prompt and output tokens of each request, of JSON lines or CSV, compressed or not.

    Raises:
        PlanError: no such file, or a line that holds no lengths; names the line.

    """
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            lengths = list(_lengths(path, file))
    except OSError as error:
        raise PlanError(f"--trace {path}: {error.strerror or error}") from None
    if not lengths:
        raise PlanError(f"--trace {path}: no requests")
    return lengths


def _lengths(path: Path, file: IO[str]) -> Iterator[int]:
    if path.name.removesuffix(".gz").endswith(".csv"):
        records: Iterator[object] = csv.DictReader(file)
    else:
        records = (_decode(line) for line in file if line.strip())
    for number, record in enumerate(records, start=1):
        try:
            yield from _of(record)
        except (KeyError, TypeError, ValueError):
            raise PlanError(f"--trace {path}: record {number} holds no request lengths") from None


def _decode(line: str) -> object:
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None


def _of(record: object) -> Iterator[int]:
    """Lengths of a request, or of all requests of a conversation."""
    if not isinstance(record, dict):
        raise TypeError
    if isinstance(record.get("requests"), list):
        for request in record["requests"]:
            yield from _of(request)
        return
    prompt, output = next(names for names in _FIELDS if names[0] in record)
    yield int(record[prompt]) + int(record[output])
