"""Writes the requests that an engine finished as a trace, without prompts."""

import atexit
import binascii
import gzip
import hashlib
import itertools
import logging
import os
import queue
import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import msgspec

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.trace.recorded import Record

logger = logging.getLogger("vllm.hybrid_blocks")

ENDINGS: Final = (".jsonl", ".jsonl.gz")
MAX_WAITING: Final = 4096

_DIGEST_BYTES: Final = 12
_DIGEST_CHARACTERS: Final = 16
_FLUSHED_EVERY_S: Final = 1.0


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

    def _open(self) -> None:
        for number in itertools.count():
            path = self._folder / f"{self._stem}{f'.{number}' if number else ''}{self._ending}"
            try:
                # What users wrote can be guessed from lengths and times: the file is the owner's.
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                continue
            raw = os.fdopen(descriptor, "wb")
            self._raw: IO[bytes] = raw
            # Digests do not get smaller, whatever is spent on them.
            is_packed = path.name.endswith(".gz")
            self._file: Any = gzip.GzipFile("", "wb", 1, raw) if is_packed else raw
            self.path = path
            break
        self._start = time.time()
        self._key = secrets.token_bytes(32)
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
        """Write what comes; a process that is killed loses the lines of its last second."""
        unflushed_since: float | None = None
        while True:
            try:
                wait = None if unflushed_since is None else _FLUSHED_EVERY_S
                finished = self._waiting.get(timeout=wait)
            except queue.Empty:
                self._file.flush()
                unflushed_since = None
                continue
            if finished is None:
                break
            self._file.write(self._line(finished))
            now = time.monotonic()
            if unflushed_since is None:
                unflushed_since = now
            elif now - unflushed_since >= _FLUSHED_EVERY_S:
                self._file.flush()
                unflushed_since = None
            if self._raw.tell() > self._largest_file:
                self._close_file()
                self._open()
        self._close_file()

    def _close_file(self) -> None:
        self._file.close()
        self._raw.close()
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
            blocks=self._digests(finished.hashes),
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

    def _digests(self, block_hashes: Sequence[bytes]) -> list[str]:
        # The key stands before each hash: BLAKE2 needs no more to be a keyed hash.
        key, blake2b = self._key, hashlib.blake2b
        digests = [blake2b(key + it, digest_size=_DIGEST_BYTES).digest() for it in block_hashes]
        text = binascii.b2a_base64(b"".join(digests), newline=False).decode()
        ends = range(0, len(text), _DIGEST_CHARACTERS)
        return [text[start : start + _DIGEST_CHARACTERS] for start in ends]


def split(path: Path) -> tuple[str, str]:
    """Return the name and its ending.

    Raises ``InvalidArgumentError`` for another ending or a folder that is not there.
    """
    for ending in ENDINGS:
        if path.name.endswith(ending) and path.parent.is_dir():
            return path.name.removesuffix(ending), ending
    raise InvalidArgumentError(
        f"{path}: give a file that ends in {' or '.join(ENDINGS)}, in a folder that exists"
    )
