"""Rows of figures that are kept, and the code that they depend on."""

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import hybrid_blocks
import orjson

Row = dict[str, Any]


@cache
def code_of(part: str) -> str:
    """Name the binary and the Python code of one part of the package, such as ``replay``."""
    package = Path(hybrid_blocks.__file__).parent
    files = [*package.glob("_core*.so"), *sorted((package / part).rglob("*.py"))]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


class Record:
    """Rows in a file, added to from several processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_bytes().splitlines() if path.exists() else []
        self.rows: dict[str, Row] = {row["digest"]: row for row in map(orjson.loads, lines)}

    def add(self, row: Row) -> None:
        """Append a row."""
        self.rows[row["digest"]] = row
        with self._path.open("ab") as file:
            file.write(orjson.dumps(row) + b"\n")

    def keep(self, rows: Iterable[Row]) -> None:
        """Write the file again with nothing but these rows, in their order."""
        self._path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
