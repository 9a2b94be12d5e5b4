"""Writes the KV events of an engine into a file, without tokens."""

from pathlib import Path
from typing import TypeVar

import msgspec

from hybrid_blocks.trace.digests import Digests
from hybrid_blocks.trace.kv_events.line import Line
from hybrid_blocks.trace.kv_events.message import Batch, Removed, Stored
from hybrid_blocks.trace.record_file import RecordFile, split

Name = TypeVar("Name", str, str | int)


class EventRecorder:
    """Writes batches.

    Attributes:
        num_batches: batches written.
        num_stored: blocks of all groups that were stored, or found where the engine reports that.
        num_lost: messages that are missing.
        num_elsewhere: events of host memory or storage, which are left out.
        num_unknown: events of a type that is not known.
    """

    def __init__(self, path: Path, largest_file: int) -> None:
        """Open ``path``, and another file each time one has ``largest_file`` bytes.

        The first name that is not taken is theirs: ``path``, or one with a number before its
        ending.

        Raises:
            InvalidArgumentError: another ending, or no such folder.
            OSError: the file cannot be made.

        """
        self._folder = path.parent
        self._stem, self._ending = split(path)
        self._largest_file = largest_file
        self._bytes_before = 0
        self._start: float | None = None
        self._open()
        self.num_batches = self.num_stored = self.num_lost = 0
        self.num_elsewhere = self.num_unknown = 0

    @property
    def path(self) -> Path:
        """The file that is written now."""
        return self._file.path

    @property
    def num_bytes(self) -> int:
        """Bytes that reached the files."""
        return self._bytes_before + self._file.num_bytes

    def put(self, batch: Batch) -> None:
        """Write a batch, all of it to one file."""
        if self._file.num_bytes > self._largest_file:
            self._file.close()
            self._bytes_before += self._file.path.stat().st_size
            self._open()
        if self._start is None:
            self._start = batch.at
        self._at = round(max(batch.at - self._start, 0.0), 6)
        self.num_batches += 1
        self.num_elsewhere += batch.num_elsewhere
        self.num_unknown += batch.num_unknown
        for event in batch.events:
            if isinstance(event, Stored):
                self.num_stored += len(event.blocks)
                self._write(self._stored(event))
            elif isinstance(event, Removed):
                blocks = self._digests.of(event.blocks)
                self._write(self._line("removed", blocks=blocks, group=event.group))
            else:
                self._write(self._line("cleared"))

    def put_lost(self, num_messages: int) -> None:
        """Write that messages are missing here."""
        self.num_lost += num_messages
        self._write(self._line("lost", messages=num_messages))

    def put_cleared(self) -> None:
        """Write that the engine began again."""
        self._write(self._line("cleared"))

    def flush(self) -> None:
        """Make everything that was written readable."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _open(self) -> None:
        # No two files share a digest or a number.
        self._file = RecordFile(self._folder, self._stem, self._ending)
        self._digests = Digests()
        self._start = None
        self._at = 0.0
        self._num_lines = 0
        self._sessions: dict[str, int] = {}
        self._adapters: dict[str | int, int] = {}

    def _stored(self, event: Stored) -> Line:
        session, adapter = event.session, event.adapter
        return self._line(
            "stored",
            blocks=self._digests.of(event.blocks),
            parent=None if event.parent is None else self._digests.of([event.parent]),
            block_tokens=event.block_tokens,
            tokens=event.num_tokens,
            group=event.group,
            layers=event.layers,
            session=_number(self._sessions, session),
            adapter=_number(self._adapters, adapter),
        )

    def _line(self, what: str, **fields: object) -> Line:
        return Line(number=self._num_lines, at=self._at, what=what, **fields)  # type: ignore[arg-type]

    def _write(self, line: Line) -> None:
        self._num_lines += 1
        self._file.write(msgspec.json.encode(line) + b"\n")


def _number(names: dict[Name, int], name: Name | None) -> int | None:
    return None if name is None else names.setdefault(name, len(names))
