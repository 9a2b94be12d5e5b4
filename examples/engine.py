"""A continuous-batching engine in 60 lines, for a model of attention beside Mamba layers.

`BlockManager` decides where keys, values and states lie, and what of a prompt is cached already.
`forward` stands for the model: it is given chunks of tokens and returns the next token of each.
"""

from collections import deque

import numpy as np
import numpy.typing as npt
from hybrid_blocks import BlockManager, GroupSpec, block_hasher

Ints = npt.NDArray[np.int32]
BUDGET = 512  # tokens of one step
GROUPS = [GroupSpec("full", 16), GroupSpec("state", 16, slots=1, pool=1)]


class Engine:
    """Serves requests over one arena: each step computes what has room, and samples."""

    def __init__(self, num_slabs: int) -> None:
        hasher = block_hasher("sha256", 16)
        self.manager = BlockManager(
            GROUPS,
            hasher,
            num_slabs=num_slabs,
            blocks_per_slab=[37, 1],
            max_in_flight_tokens=BUDGET,
        )
        self.waiting: deque[int] = deque()
        self.running: list[int] = []
        self.left: dict[int, int] = {}  # tokens to sample
        self.found = self.preempted = 0

    def add(self, name: str, prompt: Ints, max_tokens: int) -> None:
        """Let a request wait."""
        handle = self.manager.add_request(name, prompt)
        self.waiting.append(handle)
        self.left[handle] = max_tokens

    def step(self) -> None:
        """Compute a chunk of each running request, and of as many waiting ones as have room."""
        manager, chunks = self.manager, dict[int, int]()
        manager.tick()
        for handle in list(self.running):
            if handle in self.running:  # a request before it may have preempted it
                self._grow(handle, chunks)
        passed_over = []
        while self.waiting and sum(chunks.values()) < BUDGET:
            handle = self.waiting[0]
            if manager.waits_for_checkpoint(handle):  # another one leaves a state that it can use
                passed_over.append(self.waiting.popleft())
                continue
            hit = manager.match_prefix(handle)
            chunk = self._chunk(handle, hit, chunks)
            if not manager.allocate(np.array([handle]), np.array([chunk], dtype=np.int32)):
                break
            self.running.append(self.waiting.popleft())
            chunks[handle] = chunk
            self.found += hit
        self.waiting.extendleft(reversed(passed_over))
        handles = np.fromiter(chunks, np.int64)
        counts = np.fromiter(chunks.values(), np.int32)
        sampled = forward(manager.take_copies(), handles, counts)
        manager.advance(handles, counts)
        progress = map(manager.progress, chunks)
        whole = np.array([known == computed for known, computed, _ in progress], dtype=bool)
        manager.append_tokens(handles[whole], sampled[whole])
        for handle in handles[whole].tolist():
            self.left[handle] -= 1
            if not self.left[handle]:
                self.running.remove(handle)
                manager.free(np.array([handle]))

    def _chunk(self, handle: int, computed: int, chunks: dict[int, int]) -> int:
        """Return the tokens of a request's next chunk, which ends where a state is kept."""
        most = min(self.manager.progress(handle)[0] - computed, BUDGET - sum(chunks.values()))
        return self.manager.chunk(handle, computed, most)

    def _grow(self, handle: int, chunks: dict[int, int]) -> None:
        """Make room for a request's next chunk; the last requests give way where there is none."""
        chunk = self._chunk(handle, self.manager.progress(handle)[1], chunks)
        while chunk and not self.manager.allocate(
            np.array([handle]), np.array([chunk], dtype=np.int32)
        ):
            last = self.running.pop()
            self.manager.preempt(np.array([last]))
            self.waiting.appendleft(last)
            chunks.pop(last, None)
            self.preempted += 1
            if last == handle:
                return
        if chunk:
            chunks[handle] = chunk


def forward(copies: Ints, handles: npt.NDArray[np.int64], counts: Ints) -> Ints:
    """Copy states first, then compute. This model repeats the number of its request."""
    return handles.astype(np.int32)


def main() -> Engine:
    """Twelve conversations of four turns over one system prompt."""
    engine, rng = Engine(num_slabs=24), np.random.default_rng(0)
    history = {talk: np.arange(400, dtype=np.int32) for talk in range(12)}
    for turn in range(4):
        for talk, before in history.items():
            said = rng.integers(1000, 2000, 60, dtype=np.int32)
            history[talk] = np.concatenate([before, said])
            engine.add(f"{talk}-{turn}", history[talk], max_tokens=40)
        while engine.waiting or engine.running:
            engine.step()
    print(f"{engine.found:,} prompt tokens were cached, {engine.preempted} requests were preempted")
    return engine


if __name__ == "__main__":
    main()
