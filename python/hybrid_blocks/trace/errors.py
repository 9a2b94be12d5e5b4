"""The errors of a trace."""

from pathlib import Path

from hybrid_blocks.errors import HybridBlocksError


class TraceError(HybridBlocksError, ValueError):
    """A trace that cannot be used as a whole."""


class DamagedLineError(TraceError):
    """One line of a trace file that does not hold what its format asks for.

    Attributes:
        path: the file.
        line: its line number, from 1.
        reason: what was wrong.
    """

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason
