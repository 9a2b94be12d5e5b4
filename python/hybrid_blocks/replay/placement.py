"""Placements of checkpoints by name."""

from typing import Final

from hybrid_blocks import CheckpointPolicy
from hybrid_blocks.replay.errors import ReplayError

LEARNED: Final = "learned"
GEOMETRIC: Final = "geometric"
NONE: Final = "none"
FIXED: Final = "fixed"
EVERY: Final = "every"
PLACEMENTS: Final = (LEARNED, f"{FIXED}:N[+N]", GEOMETRIC, f"{EVERY}:N", NONE)

_MOST_DIGITS: Final = 9

GEOMETRIC_MARGINS: Final = (128, 1_024, 8_192)
"""Each is eight times as far before the end of the prompt as the one before."""


def read_placement(text: str) -> CheckpointPolicy:
    """Read the name of a placement.

    ``learned`` is the manager's default; ``fixed:N`` keeps a state N tokens before the end of a
    prompt, ``fixed:N+M`` two of them; ``geometric`` is ``fixed:128+1024+8192``; ``every:N`` keeps
    one every N tokens beside those of the default; ``none`` keeps none. All but the last also keep
    branch points and the end of a request.

    Raises:
        ReplayError: there is no such placement.
    """
    kind, colon, rest = text.partition(":")
    parts = rest.split("+") if colon else []
    if all(_is_count(part) for part in parts):
        margins = [int(part) for part in parts]
        match kind, len(margins):
            case "learned", 0:
                return CheckpointPolicy()
            case "geometric", 0:
                return CheckpointPolicy(prompt_margin=GEOMETRIC_MARGINS)
            case "none", 0:
                return CheckpointPolicy(prompt_end=False, branch=False, finish=False)
            case "every", 1 if margins[0]:
                return CheckpointPolicy(every=margins[0])
            case "fixed", count if count:
                return CheckpointPolicy(prompt_margin=margins)
    raise ReplayError(f"{text!r} is no placement; known are {', '.join(PLACEMENTS)}, in tokens")


def _is_count(text: str) -> bool:
    """Tell a number of tokens that the manager can hold."""
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
