"""Seats that take turns: how much of each seat's last prompt outlives the turns of the others."""

from typing import Final

from hybrid_blocks.trace.builder import Span, TraceBuilder
from hybrid_blocks.trace.errors import TraceError
from hybrid_blocks.trace.trace import Trace

SEATS: Final = "seats"

FIRST_TOKENS: Final = 4096
MORE_TOKENS: Final = 512
TURNS: Final = 6
"""After so many prompts, a seat goes to someone else, who starts from the first length again."""


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
