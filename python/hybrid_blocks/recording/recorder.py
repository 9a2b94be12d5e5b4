"""Writes the requests that an engine finished as a trace, without prompts."""

import atexit
import logging
import queue
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from hybrid_blocks import _core
from hybrid_blocks.recording.content import BLOCK_TOKENS, Content
from hybrid_blocks.recording.record_file import FLUSHED_EVERY_S, RecordFile, split

logger = logging.getLogger("vllm.hybrid_blocks")

MAX_WAITING: Final = 4096
MAX_WAITING_TOKENS: Final = 1 << 24
"""Tokens whose digests the thread that writes has yet to compute, in about 600 MiB."""
KEY_BYTES: Final = 16

DIGEST_CHARACTERS: Final = 12
"""Characters of a digest: 9 bytes in base64."""

BEGAN: Final = time.time()
"""Start of all files of this process: the first file opens only once a request has finished."""

_GATHERED_S: Final = 0.1
"""Time in which requests gather, so that the thread that writes seldom interrupts the engine's."""

_LONGEST_FIELDS: Final = 400
"""Bytes of a line that hold no digest, at most."""


class Finished(NamedTuple):
    """The engine thread's notes on a request, in the order that `RecordLines` reads them."""

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
    content: Content | None = None
    """The tokens to hash in blocks of 16, in place of ``hashes``."""

    def hashed(self) -> "Finished":
        """Return it with the digests that the file gets."""
        if self.content is None:
            return self
        hashes = self.content.digests()
        return self._replace(block_tokens=BLOCK_TOKENS, hashes=hashes, content=None)


class Recorder:
    """Writes finished requests to files of a bounded size.

    Each file has a key and counters of its own, so that no two files share a digest.
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
        self.num_dropped = self._num_reported = 0
        self._has_failed = False
        # Each of the two threads writes one of these counts, so that neither needs a lock.
        self._tokens_put = self._tokens_hashed = 0
        self._at_hand: list[Finished] = []
        self._waiting: queue.SimpleQueue[Finished | None] = queue.SimpleQueue()
        self._is_closing = threading.Event()
        self._open()
        self._thread = threading.Thread(target=self._run, name="hybrid_blocks record", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, finished: Finished) -> None:
        """Take a request; return at once."""
        num_tokens = finished.content.num_tokens if finished.content else 0
        waiting = self._tokens_put - self._tokens_hashed
        has_room = self._waiting.qsize() < MAX_WAITING and waiting < MAX_WAITING_TOKENS
        if has_room and not self._has_failed:
            self._tokens_put += num_tokens
            self._waiting.put(finished)
        else:
            self.num_dropped += 1

    def close(self, timeout: float = 10.0) -> None:
        """Write what waits and close the file; give up after ``timeout`` seconds."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._is_closing.set()
            self._thread.join(timeout)
        if self._has_failed and self.num_dropped:
            self._say_dropped("as recording had stopped")
        atexit.unregister(self.close)

    @property
    def path(self) -> Path:
        """The file that is written now."""
        return self._file.path

    @property
    def total_dropped(self) -> int:
        """Requests that no file has; ``num_dropped`` are those that no warning has counted yet."""
        return self._num_reported + self.num_dropped

    def _open(self) -> None:
        self._file = RecordFile(self._folder, self._stem, self._ending)
        self._lines = _core.RecordLines(secrets.token_bytes(KEY_BYTES), BEGAN)

    def _run(self) -> None:
        try:
            self._write_all()
        except Exception as error:  # noqa: BLE001 - recording ends, and serving goes on
            self._has_failed = True
            logger.warning(
                "hybrid_blocks stops recording to %s: %s: %s; serving goes on",
                self.path,
                type(error).__name__,
                error,
            )
            self._give_up()

    def _give_up(self) -> None:
        """Keep what was written, and let go of what waits."""
        with suppress(OSError):
            self._file.close()
        self.num_dropped += len(self._at_hand)
        self._at_hand = []
        while True:
            try:
                self.num_dropped += self._waiting.get_nowait() is not None
            except queue.Empty:
                return

    def _write_all(self) -> None:
        for batch in self._batches():
            self._at_hand = batch
            for place, finished in enumerate(batch):
                batch[place] = finished.hashed()
                self._tokens_hashed += finished.content.num_tokens if finished.content else 0
            while self._at_hand:
                num = self._num_fitting(self._at_hand)
                self._file.write(self._lines.encode(self._at_hand[:num]))
                del self._at_hand[:num]
                if self._file.num_bytes > self._largest_file:
                    self._close_file()
                    self._open()
        self._close_file()

    def _batches(self) -> Iterator[list[Finished]]:
        """Requests that wait, until the recorder is closed."""
        while True:
            try:
                first = self._waiting.get(timeout=self._until_flushed())
            except queue.Empty:
                self._file.flush()
                continue
            self._is_closing.wait(_GATHERED_S)
            waiting = [first, *(self._waiting.get() for _ in range(self._waiting.qsize()))]
            yield [finished for finished in waiting if finished is not None]
            if None in waiting:
                return

    def _num_fitting(self, batch: list[Finished]) -> int:
        """How many requests fill the file, at least one; packed ones may leave room."""
        room = self._largest_file - self._file.num_bytes
        for number, finished in enumerate(batch, start=1):
            room -= _LONGEST_FIELDS + DIGEST_CHARACTERS * len(finished.hashes)
            if room < 0:
                return number
        return len(batch)

    def _until_flushed(self) -> float | None:
        return None if self._file.is_flushed else FLUSHED_EVERY_S

    def _close_file(self) -> None:
        self._file.close()
        if self.num_dropped:
            self._say_dropped("as the file was slower than the engine")

    def _say_dropped(self, reason: str) -> None:
        logger.warning(
            "hybrid_blocks dropped %d requests from %s, %s", self.num_dropped, self.path, reason
        )
        self._num_reported += self.num_dropped
        self.num_dropped = 0


OF_PROCESS: Final[list[Recorder | None]] = []
"""The recorder of this process from the first request on; None where no file could be made."""
