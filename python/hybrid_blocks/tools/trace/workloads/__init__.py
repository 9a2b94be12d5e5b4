"""Generated workloads of known kinds, each a function of its seed."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from hybrid_blocks.tools.trace.builder import Span, TraceBuilder
from hybrid_blocks.tools.trace.errors import TraceError
from hybrid_blocks.tools.trace.trace import Trace
from hybrid_blocks.tools.trace.workloads.people import Chats, Documents
from hybrid_blocks.tools.trace.workloads.programs import Agents, BranchingTools
from hybrid_blocks.tools.trace.workloads.sessions import Kind, fill

KINDS: Final[Mapping[str, Kind]] = {
    "conversations": Chats(),
    "agents": Agents(),
    "documents": Documents(),
    "tools": BranchingTools(),
}
SEATS: Final = "seats"
WORKLOADS: Final = (*KINDS, SEATS)
"""The names of ``--workload``; the first is generated unless another is named."""

FIRST_TOKENS: Final = 4096
MORE_TOKENS: Final = 512
TURNS: Final = 6
"""Prompts of a seat before another user takes it, who starts from the first length again."""


def generate_workload(
    name: str, seed: int = 0, num_requests: int = 2000, num_seats: int = 16
) -> Trace:
    """Make a workload; equal arguments make equal workloads.

    Requests are in the order of their arrival if none ever waited. ``num_seats`` is for ``seats``,
    which draws nothing: every seed makes the same.

    Raises: TraceError: there is no workload of this name, or its number of requests is 0.
    """
    if num_requests < 1:
        raise TraceError(f"num_requests is {num_requests}; it must be at least 1")
    if name == SEATS:
        return generate_seats(num_seats, num_requests)
    if name not in KINDS:
        raise TraceError(f"{name!r} is no generated workload; known are {', '.join(WORKLOADS)}")
    builder = TraceBuilder(f"{name}, seed {seed}")
    fill(KINDS[name], builder, np.random.default_rng(seed), num_requests)
    return builder.build()


def generate_seats(num_seats: int, num_requests: int) -> Trace:
    """Make requests of seats that take turns; no request waits for any but its seat's last one.

    Each prompt is its seat's last one and 512 tokens more, from 4,096 on. An answer is one token,
    which no prompt repeats.

    Raises:
        TraceError: there is no seat.
    """
    if num_seats < 1:
        raise TraceError(f"num_seats is {num_seats}; it must be at least 1")
    builder = TraceBuilder(f"{num_seats} seats")
    prompts: list[list[Span]] = [[] for _ in range(num_seats)]
    sessions = [0] * num_seats
    for number in range(num_requests):
        turn, seat = divmod(number, num_seats)
        if turn % TURNS == 0:
            prompts[seat], sessions[seat] = [builder.fresh(FIRST_TOKENS)], builder.new_session()
        else:
            prompts[seat].append(builder.fresh(MORE_TOKENS))
        builder.add(
            [*prompts[seat], builder.fresh(1)],
            arrival=0.0,
            prompt_tokens=FIRST_TOKENS + MORE_TOKENS * (turn % TURNS),
            output_tokens=1,
            follows=number - num_seats if turn else -1,
            session=sessions[seat],
        )
    return builder.build()


__all__ = [
    "KINDS",
    "SEATS",
    "WORKLOADS",
    "Agents",
    "BranchingTools",
    "Chats",
    "Documents",
    "Kind",
    "generate_seats",
    "generate_workload",
]
