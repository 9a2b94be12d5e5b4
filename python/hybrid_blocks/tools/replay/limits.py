"""Requests that a manager cannot hold even when it is empty, and so none beside it is given."""

from collections.abc import Sequence
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

from hybrid_blocks.tools.replay.cache import BlockUnit
from hybrid_blocks.tools.replay.config import ReplayError
from hybrid_blocks.tools.replay.manager import ReplayManager
from hybrid_blocks.tools.trace import Trace


class RequestLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The longest request, in tokens, that a manager of ``num_blocks`` units can hold."""

    manager: str
    num_blocks: int
    max_tokens: int
    unit: BlockUnit = BlockUnit()

    @classmethod
    def of(cls, name: str, manager: ReplayManager) -> Self:
        """Read the limit of a manager off it."""
        return cls(
            manager=name,
            num_blocks=manager.num_blocks,
            max_tokens=manager.max_request_tokens,
            unit=manager.unit,
        )


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A request that a manager did not run though its limit allows it."""

    manager: str
    request: int


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that are left out because of one manager, and their lengths in tokens.

    ``max_tokens`` is the limit that they are over; None if the manager refused them though they are
    not. A request over the limits of two managers counts with both.
    """

    manager: str
    max_tokens: int | None
    requests: int
    shortest: int
    longest: int


class TooLarge(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a trace that are left out, and why."""

    requests: frozenset[int]
    reasons: tuple[LeftOut, ...]


def find_too_large(
    trace: Trace,
    limits: Sequence[RequestLimit],
    *,
    num_speculative_tokens: int,
    reject: bool,
    refused: Sequence[Refusal] = (),
) -> TooLarge:
    """Find the requests that are over a limit; the last token of a request is never computed.

    Those that a manager ``refused`` are among them.

    Raises:
        ReplayError: there are some, and ``reject`` does not allow to leave them out.
    """
    held = trace.total_tokens - 1 + num_speculative_tokens
    found: set[int] = set()
    reasons = []
    for limit in limits:
        over = np.flatnonzero(held > limit.max_tokens)
        if not len(over):
            continue
        if not reject:
            raise _does_not_fit(trace, limit, held, len(over))
        found.update(over.tolist())
        reasons.append(_left_out(limit.manager, limit.max_tokens, trace.total_tokens[over]))
    for manager in dict.fromkeys(refusal.manager for refusal in refused):
        own = [refusal.request for refusal in refused if refusal.manager == manager]
        found.update(own)
        reasons.append(_left_out(manager, None, trace.total_tokens[own]))
    return TooLarge(requests=frozenset(found), reasons=tuple(reasons))


def _left_out(manager: str, max_tokens: int | None, lengths: npt.NDArray[np.int64]) -> LeftOut:
    return LeftOut(
        manager=manager,
        max_tokens=max_tokens,
        requests=len(lengths),
        shortest=int(lengths.min()),
        longest=int(lengths.max()),
    )


def _does_not_fit(
    trace: Trace, limit: RequestLimit, held: npt.NDArray[np.int64], count: int
) -> ReplayError:
    worst = int(np.argmax(held))
    return ReplayError(
        f"{count} of {len(trace)} requests do not fit into {limit.num_blocks:,} "
        f"{limit.unit.name}s of {limit.manager}, which hold {limit.max_tokens:,} tokens of one "
        f"request; the largest, request {worst}, needs {held[worst]:,} tokens. Give more memory, "
        "or leave them out with --on-error skip"
    )
