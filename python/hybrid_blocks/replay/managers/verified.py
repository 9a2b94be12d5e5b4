"""The Rust manager with its data: every request must read what its tokens wrote. Imports torch."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hybrid_blocks.manager import Counts, Handles
from hybrid_blocks.plan import ArenaPlan
from hybrid_blocks.replay.cache import Cache
from hybrid_blocks.replay.config import EngineConfig
from hybrid_blocks.replay.errors import ReplayError
from hybrid_blocks.replay.managers.rust import RustManager, RustOptions, make_rust
from hybrid_blocks.replay.managers.tagged_device import TaggedDevice
from hybrid_blocks.replay.managers.wrapped import WrappedManager
from hybrid_blocks.replay.positions import held_tokens, read_positions, written_positions
from hybrid_blocks.replay.prefix_digests import Digests, PrefixDigests
from hybrid_blocks.replay.tagged_arena import TagError

STAGE_EVERY = 16
"""Steps between two requests whose blocks are taken through an offload."""


class VerifiedManager(WrappedManager):
    """`RustManager` beside a device on which its copies are run and its blocks are written.

    In each step, before the manager hears of its end: the copies are run; every block that a
    scheduled request looks at is compared with the tokens that the request knows; then what the
    step computes is written. A request that joins in the step may hit what those before it compute
    in it, so it is looked at after them. Raises ``ReplayError`` where a block holds something else.
    """

    def __init__(self, inner: RustManager, geometry: ArenaPlan) -> None:
        super().__init__(inner)
        self._core = inner.core
        self._groups = geometry.groups
        self._device = TaggedDevice(geometry)
        self._names: dict[int, str] = {}
        self._running: set[int] = set()
        self._digests: dict[int, PrefixDigests] = {}
        self._steps = 0
        self._verified_reads = 0
        self._staged_blocks = 0
        self.match_prefix = inner.match_prefix
        self.chunk = inner.chunk
        self.allocate = inner.allocate

    def add_request(self, request_id: str, tokens: npt.NDArray[np.int32]) -> int:
        """Register a request."""
        handle = self._inner.add_request(request_id, tokens)
        self._names[handle] = request_id
        self._digests[handle] = PrefixDigests(tokens)
        return handle

    def begin_step(self) -> None:
        """Let time pass; copies wait until all of the step's are known."""
        self._core.tick()

    def advance(self, handles: Handles, num_tokens: Counts) -> None:
        """Run copies, read, write, and record that tokens were computed."""
        self._device.run(self._core.take_copies())
        requests = handles.tolist()
        starts = [self._core.progress(handle)[1] for handle in requests]
        ends = [start + count for start, count in zip(starts, num_tokens.tolist(), strict=True)]
        running = sum(request in self._running for request in requests)
        joined = [slice(at, at + 1) for at in range(running, len(requests))]
        for part in [slice(running), *joined] if running else joined:
            for group in range(len(self._groups)):
                self._read(group, requests[part], starts[part])
            for group in range(len(self._groups)):
                self._write(group, requests[part], starts[part], ends[part])
        self._running.update(requests)
        self._steps += 1
        self._inner.advance(handles, num_tokens)

    def preempt(self, handles: Handles) -> None:
        """Give back the blocks of requests."""
        self._inner.preempt(handles)
        self._running.difference_update(handles.tolist())

    def append_tokens(self, handles: Handles, tokens: Counts) -> None:
        """Append one sampled token to each request."""
        self._inner.append_tokens(handles, tokens)
        for row, handle in enumerate(handles.tolist()):
            self._digests[handle].extend(tokens[row : row + 1])

    def free(self, handles: Handles) -> None:
        """Forget requests."""
        self._inner.free(handles)
        self._running.difference_update(handles.tolist())
        for handle in handles.tolist():
            del self._names[handle], self._digests[handle]

    def stats(self) -> dict[str, int]:
        """Return the manager's counters, and how many blocks were read and staged."""
        verified = {"verified_reads": self._verified_reads, "staged_blocks": self._staged_blocks}
        return self._inner.stats() | verified

    def _read(self, group: int, requests: list[int], starts: list[int]) -> None:
        kind = self._groups[group]
        positions = [read_positions(kind, start) for start in starts]
        blocks = self._find(group, requests, positions, starts)
        if self._steps % STAGE_EVERY == 0:
            staged = blocks.ids[: len(positions[0])]
            self._device.stage(group, staged)
            self._staged_blocks += len(staged)
        try:
            self._device.check(group, blocks.ids, blocks.digests)
        except TagError as error:
            raise self._wrong(group, *blocks.place(error.at), str(error)) from error
        self._verified_reads += len(blocks.ids)

    def _write(self, group: int, requests: list[int], starts: list[int], ends: list[int]) -> None:
        kind = self._groups[group]
        positions = [written_positions(kind, *span) for span in zip(starts, ends, strict=True)]
        blocks = self._find(group, requests, positions, ends)
        self._device.write(group, blocks.ids, blocks.digests)

    def _find(
        self, group: int, requests: list[int], positions: list[range], lengths: list[int]
    ) -> "_Blocks":
        """Return blocks at ``positions`` of requests of these lengths, and their content."""
        kind = self._groups[group]
        ids, digests = [np.empty(0, np.int32)], [np.empty(0, np.uint64)]
        for request, wanted, length in zip(requests, positions, lengths, strict=True):
            table = self._core.block_ids(request, group)[wanted.start : wanted.stop]
            missing = np.flatnonzero(table == 0)
            if len(missing) or len(table) < len(wanted):
                first = int(missing[0]) if len(missing) else len(table)
                raise self._wrong(group, request, wanted.start + first, "there is no block")
            ids.append(table)
            digests.append(self._digests[request].of(held_tokens(kind, wanted, length)))
        return _Blocks(requests, positions, np.concatenate(ids), np.concatenate(digests))

    def _wrong(self, group: int, request: int, position: int, what: str) -> ReplayError:
        return ReplayError(
            f"request {self._names[request]}, group {group} ({self._groups[group].name}), "
            f"position {position} of its block table: {what}"
        )


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Blocks of one group, one request's ``positions`` after the other's."""

    requests: list[int]
    positions: list[range]
    ids: npt.NDArray[np.int32]
    digests: Digests

    def place(self, at: int) -> tuple[int, int]:
        """Return the request and the position of block number ``at``."""
        for request, positions in zip(self.requests, self.positions, strict=True):
            if at < len(positions):
                return request, positions[at]
            at -= len(positions)
        raise IndexError(f"there are {len(self.ids)} blocks")


def make_verified(cache: Cache, config: EngineConfig, options: RustOptions) -> VerifiedManager:
    """Make a Rust manager and the device that it manages."""
    return VerifiedManager(make_rust(cache, config, options), cache.geometry)
