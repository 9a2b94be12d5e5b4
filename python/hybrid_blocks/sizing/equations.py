"""What the steps of recorded requests did, as equations of the step's coefficients."""

from typing import Final

import numpy as np

from hybrid_blocks.sizing.served import Floats, Served

COLUMNS: Final = (
    "fixed",
    "per_prefill_token",
    "per_sequence",
    "per_context_token",
    "per_prefill_pair",
)
"""The coefficients of `StepTime`, in the order of the equations' columns."""

_ROWS_AT_ONCE: Final = 256
_SHORTEST: Final = 1e-6


def equations(served: Served, max_num_batched_tokens: int) -> tuple[Floats, Floats]:
    """Return counts of shape ``[2 n, 5]`` and seconds ``[2 n]``: ``counts @ coefficients``.

    Each request gives two equations: one from its first step to its first token, one from there to
    its last token. In each time, prompts of other requests are computed and others decode: a
    request takes part evenly over the time in which the file says that it did so. A time without a
    step gives no equation.
    """
    others = _Others(served)
    start, first, end, steps = others.start, others.first, others.end, others.output - 1
    counts, seconds = [], []
    for at in range(0, len(start), _ROWS_AT_ONCE):
        rows = slice(at, at + _ROWS_AT_ONCE)
        for part in (
            others.while_prefilling(start[rows], first[rows], max_num_batched_tokens),
            others.while_decoding(first[rows], end[rows], steps[rows]),
        ):
            counts.append(part[0])
            seconds.append(part[1])
    every, took = np.concatenate(counts), np.concatenate(seconds)
    kept = (every[:, 0] > 0) & (took > _SHORTEST)
    return every[kept], took[kept]


class _Others:
    """All requests, as parts of the steps of each."""

    def __init__(self, served: Served) -> None:
        timed = served.is_timed
        self.start, self.first = served.scheduled[timed], served.first_token[timed]
        self.end, self.output = served.finished[timed], served.output[timed]
        self._prompt, found = served.prompt[timed], served.found[timed]
        self._computed = self._prompt - found
        self._pairs = self._computed * (found + self._computed / 2)
        self._prefill_seconds = np.maximum(self.first - self.start, _SHORTEST)
        self._decode_seconds = np.maximum(self.end - self.first, _SHORTEST)

    def while_prefilling(
        self, since: Floats, until: Floats, max_num_batched_tokens: int
    ) -> tuple[Floats, Floats]:
        """Return the counts between the first step and the first token, and the seconds."""
        tokens = self._prefilled(since, until) @ self._computed
        return self._counts(since, until, np.ceil(tokens / max_num_batched_tokens))

    def while_decoding(self, since: Floats, until: Floats, steps: Floats) -> tuple[Floats, Floats]:
        """Return the counts between the first token and the last, and the seconds."""
        return self._counts(since, until, steps)

    def _counts(self, since: Floats, until: Floats, steps: Floats) -> tuple[Floats, Floats]:
        seconds = until - since
        rate = (steps / np.maximum(seconds, _SHORTEST))[:, np.newaxis]
        prefilled = self._prefilled(since, until)
        prefilling = prefilled * self._prefill_seconds
        decoding, middle = _overlap(since, until, self.first, self.end)
        grown = self.output * (middle - self.first) / self._decode_seconds
        context = decoding * (self._prompt + grown) + prefilling * self._prompt
        counts = np.stack(
            [
                steps,
                prefilled @ self._computed,
                (rate * (decoding + prefilling)).sum(axis=1),
                (rate * context).sum(axis=1),
                prefilled @ self._pairs,
            ],
            axis=1,
        )
        return counts, seconds

    def _prefilled(self, since: Floats, until: Floats) -> Floats:
        """Share of each prompt that is computed in each time."""
        overlap, _ = _overlap(since, until, self.start, self.first)
        shares: Floats = overlap / self._prefill_seconds
        return shares


def _overlap(since: Floats, until: Floats, start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """Return the seconds that each time of the one has in common with each of the other.

    Beside them stands the middle of what they have in common.
    """
    low = np.maximum(since[:, np.newaxis], start)
    high = np.minimum(until[:, np.newaxis], end)
    return np.maximum(high - low, 0.0), (low + high) / 2
