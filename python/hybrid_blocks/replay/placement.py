"""Placements of checkpoints by name."""

from typing import Final

from hybrid_blocks import CheckpointPolicy
from hybrid_blocks.replay.errors import ReplayError

DEFAULT_PLACEMENT: Final = "default"
NO_PLACEMENT: Final = "none"
FIXED: Final = "fixed"
EVERY: Final = "every"


def read_placement(text: str) -> CheckpointPolicy:
    """Read the name of a placement.

    ``default`` is the manager's own; ``fixed:N`` keeps a state N tokens before the end of a prompt;
    ``every:N`` keeps one every N tokens too; ``none`` keeps none. All but the last also keep branch
    points and the end of a request.

    Raises:
        ReplayError: there is no such placement.
    """
    if text == DEFAULT_PLACEMENT:
        return CheckpointPolicy()
    if text == NO_PLACEMENT:
        return CheckpointPolicy(prompt_end=False, branch=False, finish=False)
    kind, _, number = text.rpartition(":")
    if number.isdecimal():
        if kind == FIXED:
            return CheckpointPolicy(prompt_margin=int(number))
        if kind == EVERY:
            return CheckpointPolicy(every=int(number))
    raise ReplayError(
        f"{text!r} is no placement; known are {DEFAULT_PLACEMENT}, {NO_PLACEMENT}, {FIXED}:N and "
        f"{EVERY}:N, with N tokens"
    )
