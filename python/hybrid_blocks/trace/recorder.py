"""Writes the requests that an engine finished as a trace, without prompts."""

import atexit
import logging
import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from hybrid_blocks.trace.digests import Digests
from hybrid_blocks.trace.record_file import FLUSHED_EVERY_S, RecordFile, split
from hybrid_blocks.trace.recorded import Record

logger = logging.getLogger("vllm.hybrid_blocks")

MAX_WAITING: Final = 4096


class Finished(NamedTuple):
    """The engine thread's notes on a request; the other thread makes the digests."""

    arrival: float
    block_tokens: int
    prompt_tokens: int
    output_tokens: int
    found_tokens: int | None
    hashes: Sequence[bytes]
    session: str | None
    adapter: str | None
    priority: int
    aborted: bool
    scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None


class Recorder:
    """Writes finished requests to files of a bounded size.

    Each file has a key, a start and counters of its own, so that no two files share a digest.
    """

    def __init__(self, path: Path, largest_file: int) -> None:
        """Open ``path``, with the number of the next file before its ending where it exists.

        Raises:
            InvalidArgumentError: another ending, or no such folder.
            OSError: the file cannot be made.

        """
        self._stem, self._ending = split(path)
        self._folder = path.parent
        self._largest_file = largest_file
        self.num_dropped = 0
        self._has_failed = False
        self._waiting: queue.Queue[Finished | None] = queue.Queue(MAX_WAITING)
        self._open()
        self._thread = threading.Thread(target=self._run, name="hybrid_blocks record", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, finished: Finished) -> None:
        """Take a request; return at once."""
        if self._has_failed:
            return
        try:
            self._waiting.put_nowait(finished)
        except queue.Full:
            self.num_dropped += 1

    def close(self, timeout: float = 10.0) -> None:
        """Write what waits and close the file; give up after ``timeout`` seconds."""
        if self._thread.is_alive():
            try:
                self._waiting.put(None, timeout=timeout)
            except queue.Full:
                return
            self._thread.join(timeout)
        atexit.unregister(self.close)

    @property
    def path(self) -> Path:
        """The file that is written now."""
        return self._file.path

    def _open(self) -> None:
        self._file = RecordFile(self._folder, self._stem, self._ending)
        self._start = time.time()
        self._digests = Digests()
        self._num_requests = 0
        self._sessions: dict[str, int] = {}
        self._adapters: dict[str, int] = {}

    def _run(self) -> None:
        try:
            self._write_all()
        except OSError as error:
            logger.warning("hybrid_blocks stops recording to %s: %s", self.path, error)
            self._has_failed = True

    def _write_all(self) -> None:
        while True:
            try:
                finished = self._waiting.get(timeout=self._until_flushed())
            except queue.Empty:
                self._file.flush()
                continue
            if finished is None:
                break
            self._file.write(self._line(finished))
            if self._file.num_bytes > self._largest_file:
                self._close_file()
                self._open()
        self._close_file()

    def _until_flushed(self) -> float | None:
        return None if self._file.is_flushed else FLUSHED_EVERY_S

    def _close_file(self) -> None:
        self._file.close()
        if self.num_dropped:
            logger.warning(
                "hybrid_blocks dropped %d requests from %s, as the file was slower than the engine",
                self.num_dropped,
                self.path,
            )
            self.num_dropped = 0

    def _line(self, finished: Finished) -> bytes:
        def number(names: dict[str, int], name: str | None) -> int | None:
            return None if name is None else names.setdefault(name, len(names))

        def after(moment: float | None) -> float | None:
            return None if moment is None else round(max(0.0, moment - finished.arrival), 6)

        record = Record(
            number=self._num_requests,
            arrival=round(finished.arrival - self._start, 6),
            block_tokens=finished.block_tokens,
            prompt_tokens=finished.prompt_tokens,
            output_tokens=finished.output_tokens,
            found_tokens=finished.found_tokens,
            blocks=self._digests.of(finished.hashes),
            session=number(self._sessions, finished.session),
            adapter=number(self._adapters, finished.adapter),
            priority=finished.priority,
            aborted=finished.aborted,
            scheduled=after(finished.scheduled),
            first_token=after(finished.first_token),
            finished=after(finished.finished),
        )
        self._num_requests += 1
        return msgspec.json.encode(record) + b"\n"
