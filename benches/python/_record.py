"""Rows of figures that are kept, and the code that they depend on."""

import hashlib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hybrid_blocks
import orjson
from hybrid_blocks.model import Model
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.plan.vllm import align

Row = dict[str, Any]

CARD = "H100-80GB"
"""The card that vLLM's side is planned for; its kernels write states from inside a forward."""


def stock_code(model: Model, deployment: Deployment) -> str:
    """Name what vLLM's own rows depend on: its release, and the card if its kernels count there."""
    has_kernel = align.alignment(model, deployment) is not None
    return f"vllm {version('vllm')}" + (f" on {deployment.card}" if has_kernel else "")


@cache
def code_of(part: str) -> str:
    """Name the binary and the Python code of one folder of the package, such as ``vllm``."""
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
