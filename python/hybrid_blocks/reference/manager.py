"""Requests, and what a scheduler may ask about them."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hybrid_blocks.errors import (
    DuplicateRequestError,
    InvalidArgumentError,
    RequestTooLargeError,
    UnknownRequestError,
)
from hybrid_blocks.manager import Counts, Handles
from hybrid_blocks.reference.digests import DigestChain
from hybrid_blocks.reference.group_full import FullAttentionGroup
from hybrid_blocks.reference.pool import Pool
from hybrid_blocks.reference.prefix_index import PrefixIndex


@dataclass
class _Request:
    request_id: str
    chain: DigestChain
    promised: int | None = None
    is_running: bool = False
    num_computed: int = 0
    num_allocated: int = 0


class ReferenceManager:
    """One full-attention group over one pool; see `hybrid_blocks.manager.Manager`."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if block_size < 1:
            raise InvalidArgumentError(f"block_size is {block_size}; it must be at least 1")
        self.block_size = block_size
        self._index = PrefixIndex()
        self._pool = Pool(num_blocks, self._index)
        self._group = FullAttentionGroup(block_size, self._pool, self._index)
        self._requests: dict[int, _Request] = {}
        self._ids: set[str] = set()
        self._next_handle = 0

    @property
    def num_blocks(self) -> int:
        """Blocks that can be handed out."""
        return self._pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks without an owner, cached ones included."""
        return self._pool.num_free_blocks

    def add_request(self, request_id: str, tokens: npt.NDArray[np.int32]) -> int:
        """Register a request and return its handle."""
        if request_id in self._ids:
            raise DuplicateRequestError(
                f"request id {request_id!r} is in use; free that request first"
            )
        self._check_size(len(tokens))
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self._requests[handle] = _Request(request_id, DigestChain(self.block_size, tokens))
        self._ids.add(request_id)
        return handle

    def match_prefix(self, handle: int) -> int:
        """Return how many leading tokens the cache holds: all but one at most, 0 while running."""
        request = self._request(handle)
        if request.is_running:
            return 0
        request.promised = self._match(request)
        return request.promised

    def allocate(self, handles: Handles, num_new_tokens: Counts) -> int:
        """Make room for more tokens of each request, in order; return how many were served.

        A request whose matched prefix was evicted since counts as one that does not fit.
        """
        requests = self._batch(handles, num_new_tokens)
        for request, num_new in zip(requests, num_new_tokens.tolist(), strict=True):
            start = request.num_computed if request.is_running else self._adoptable(request)
            self._check_size((start or 0) + num_new)
        for served, (handle, num_new) in enumerate(
            zip(handles.tolist(), num_new_tokens.tolist(), strict=True)
        ):
            if not self._allocate_one(handle, num_new):
                return served
        return len(requests)

    def _allocate_one(self, handle: int, num_new: int) -> bool:
        request = self._requests[handle]
        digests = request.chain.digests
        matched = request.num_computed if request.is_running else self._adoptable(request)
        if matched is None:
            return False
        target = matched + num_new
        if self._group.num_missing(handle, digests, matched, target) > self._pool.num_free_blocks:
            return False
        if not request.is_running:
            self._group.adopt(handle, digests, matched)
            request.is_running, request.num_computed = True, matched
        self._group.grow(handle, target)
        request.num_allocated = max(request.num_allocated, target)
        return True

    def can_admit(self, handle: int, headroom: int = 0) -> bool:
        """Return whether all known tokens have room, with ``headroom`` blocks left over."""
        request = self._request(handle)
        if request.is_running:
            return True
        matched, known = self._match(request), request.chain.num_tokens
        missing = self._group.num_missing(handle, request.chain.digests, matched, known)
        return missing + headroom <= self._pool.num_free_blocks

    def advance(self, handles: Handles, num_tokens: Counts) -> None:
        """Record computed tokens; full blocks enter the cache."""
        requests = self._batch(handles, num_tokens)
        for request, num_new in zip(requests, num_tokens.tolist(), strict=True):
            room = min(request.num_allocated, request.chain.num_tokens) - request.num_computed
            if not request.is_running or num_new > room:
                raise InvalidArgumentError(
                    f"request {request.request_id!r} cannot have computed {num_new} more tokens: "
                    f"{request.num_computed} of {request.chain.num_tokens} are computed and "
                    f"{request.num_allocated} have room"
                )
        for handle, request, num_new in zip(
            handles.tolist(), requests, num_tokens.tolist(), strict=True
        ):
            request.num_computed += num_new
            self._group.cache(handle, request.chain.digests, request.num_computed)

    def append_tokens(self, handles: Handles, tokens: Counts) -> None:
        """Append one sampled token to each request."""
        for index, request in enumerate(self._batch(handles, tokens)):
            request.chain.extend(tokens[index : index + 1])

    def preempt(self, handles: Handles) -> None:
        """Give back the requests' blocks; their tokens are kept, to be computed again."""
        requests = self._batch(handles)
        for handle, request in zip(handles.tolist(), requests, strict=True):
            self._group.release(handle)
            request.promised, request.is_running = None, False
            request.num_computed = request.num_allocated = 0

    def free(self, handles: Handles) -> None:
        """Give back the requests' blocks and forget the requests."""
        requests = self._batch(handles)
        for handle, request in zip(handles.tolist(), requests, strict=True):
            self._group.release(handle)
            self._ids.remove(request.request_id)
            del self._requests[handle]

    def block_ids(self, handle: int) -> list[int]:
        """Return a request's block table."""
        self._request(handle)
        return self._group.table(handle)

    def check_integrity(self) -> None:
        """Assert that owners, tables, queue and index agree."""
        self._pool.check_integrity()
        self._index.check_integrity()
        held = Counter(block for handle in self._requests for block in self._group.table(handle))
        for block in range(1, self.num_blocks + 1):
            assert self._pool.num_owners(block) == held[block]

    def _request(self, handle: int) -> _Request:
        try:
            return self._requests[handle]
        except KeyError:
            raise UnknownRequestError(
                f"no request has handle {handle}: it was freed, or never added"
            ) from None

    def _batch(self, handles: Handles, counts: Counts | None = None) -> list[_Request]:
        if counts is not None and len(counts) != len(handles):
            raise InvalidArgumentError(f"{len(handles)} handles but {len(counts)} counts or tokens")
        if counts is not None and len(counts) and counts.min() < 0:
            raise InvalidArgumentError(f"a count or token is {counts.min()}; none may be negative")
        if len(set(handles.tolist())) != len(handles):
            raise InvalidArgumentError(f"a handle is given twice: {handles.tolist()}")
        return [self._request(handle) for handle in handles.tolist()]

    def _match(self, request: _Request) -> int:
        return self._group.match(request.chain.digests, request.chain.num_tokens - 1)

    def _adoptable(self, request: _Request) -> int | None:
        """Return the matched prefix in tokens, or None if it was promised and is gone."""
        if request.promised is None:
            return self._match(request)
        held = self._group.match(request.chain.digests, request.promised)
        return held if held == request.promised else None

    def _check_size(self, num_tokens: int) -> None:
        needed = -(-num_tokens // self.block_size)
        if needed > self.num_blocks:
            raise RequestTooLargeError(
                f"request of {num_tokens} tokens needs {needed} blocks of {self.num_blocks} in "
                f"all; at most {self.num_blocks * self.block_size} tokens fit"
            )
