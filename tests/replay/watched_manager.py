"""A manager that checks that it is called as a scheduler may call it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hybrid_blocks.tools.replay import EngineConfig, RustOptions, block_cache
from hybrid_blocks.tools.replay.manager import Counts, Handles
from hybrid_blocks.tools.replay.managers.rust import RustManager, make_rust


@dataclass
class Life:
    """Facts that the manager's calls showed of one request."""

    prompt: list[int]
    matched: int | None = None
    room: int | None = None
    computed: int = 0
    sampled: int = 0
    preempted: int = 0
    freed: bool = False

    @property
    def known(self) -> int:
        return len(self.prompt) + self.sampled


class WatchedManager(RustManager):
    """A manager of one group that keeps every token, its integrity checked after every call."""

    def __init__(self, num_blocks: int, block_size: int, config: EngineConfig) -> None:
        cache, options = block_cache(num_blocks, block_size), RustOptions()
        self.inner = make_rust(cache, config, options, RustManager)
        super().__init__(self.inner.core, cache, options)
        self.lives: dict[int, Life] = {}
        self.sampled: dict[str, list[int]] = {}
        self.names: dict[int, str] = {}
        self.max_num_seqs = config.max_num_seqs
        self.budget = config.max_num_batched_tokens
        self.steps = 0

    def begin_step(self) -> None:
        self.steps += 1
        self.inner.begin_step()

    def chunk(self, handle: int, start: int, num_new_tokens: int) -> int:
        life = self.lives[handle]
        assert start == (life.matched if life.room is None else life.computed)
        assert 0 < num_new_tokens <= min(self.budget, life.known - start)
        return self.inner.chunk(handle, start, num_new_tokens)

    def stats(self) -> dict[str, int]:
        return {}

    def add_request(self, request_id: str, tokens: npt.NDArray[np.int32]) -> int:
        handle = self.inner.add_request(request_id, tokens)
        self.lives[handle] = Life(tokens.tolist())
        self.names[handle] = request_id
        self.sampled[request_id] = []
        return handle

    def match_prefix(self, handle: int) -> int:
        life = self.lives[handle]
        assert life.room is None
        life.matched = self.inner.match_prefix(handle)
        assert 0 <= life.matched < life.known
        return life.matched

    def allocate(self, handles: Handles, num_new_tokens: Counts) -> int:
        assert handles.dtype == np.int64
        assert num_new_tokens.dtype == np.int32
        assert len(handles) == len(num_new_tokens) > 0
        assert (num_new_tokens > 0).all()
        served = self.inner.allocate(handles, num_new_tokens)
        for handle, count in zip(handles[:served], num_new_tokens[:served], strict=True):
            life = self.lives[int(handle)]
            assert not life.freed
            if life.room is None:
                assert life.matched is not None
                life.computed = life.matched
            life.room = life.computed + int(count)
            assert life.room <= life.known
        running = sum(life.room is not None for life in self.lives.values())
        assert running <= self.max_num_seqs
        self.inner.core.check_integrity()
        return served

    def advance(self, handles: Handles, num_tokens: Counts) -> None:
        assert 0 < num_tokens.sum() <= self.budget
        self.inner.advance(handles, num_tokens)
        for handle, count in zip(handles.tolist(), num_tokens.tolist(), strict=True):
            life = self.lives[handle]
            life.computed += count
            assert life.room is not None
            assert life.computed <= life.room
        self.inner.core.check_integrity()

    def append_tokens(self, handles: Handles, tokens: Counts) -> None:
        assert tokens.dtype == np.int32
        self.inner.append_tokens(handles, tokens)
        for handle, token in zip(handles.tolist(), tokens.tolist(), strict=True):
            life = self.lives[handle]
            assert life.computed == life.known, "sampled before all known tokens were computed"
            life.sampled += 1
            self.sampled[self.names[handle]].append(token)

    def preempt(self, handles: Handles) -> None:
        self.inner.preempt(handles)
        for handle in handles.tolist():
            life = self.lives[handle]
            assert life.room is not None
            life.room, life.matched, life.computed = None, None, 0
            life.preempted += 1
        self.inner.core.check_integrity()

    def free(self, handles: Handles) -> None:
        self.inner.free(handles)
        for handle in handles.tolist():
            life = self.lives[handle]
            assert not life.freed
            life.room, life.freed = None, True
        self.inner.core.check_integrity()

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a scheduler has no business with {name}")
