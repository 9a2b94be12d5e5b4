"""Least squares whose solution has no negative part."""

from itertools import combinations
from typing import Final

import numpy as np

from hybrid_blocks.sizing.served import Floats

_ROUNDS: Final = 8
_FAR: Final = 2.5


def solve(counts: Floats, seconds: Floats) -> Floats:
    """Return the coefficients, none below 0, with the least relative error over the equations.

    As many equations then give too long a time as too short a one.

    An equation far from the others counts less, as time in which the machine did other work is in
    some of them.
    """
    rows, ones = counts / seconds[:, np.newaxis], np.ones(len(seconds))
    weights = ones
    found = np.zeros(counts.shape[1])
    for _ in range(_ROUNDS):
        found = _solve(rows * weights[:, np.newaxis], ones * weights)
        away = np.abs(rows @ found - 1)
        usual = max(float(np.median(away)), 1e-9)
        weights = np.sqrt(np.minimum(1.0, _FAR * usual / np.maximum(away, 1e-12)))
    return found * _middle(rows @ found)


def _middle(shares: Floats) -> float:
    """What brings the median of predicted over recorded times to 1.

    Least squares of relative errors are low where times scatter. A prediction of nothing is off by
    1, as one of twice the time is.
    """
    return 1.0 / float(np.median(shares)) if np.median(shares) > 0 else 1.0


def _solve(rows: Floats, wanted: Floats) -> Floats:
    """Try every set of columns: the best whose solution is not negative is the least of all."""
    width = rows.shape[1]
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-300)
    scaled = rows / scale
    best, least = np.zeros(width), float(wanted @ wanted)
    for size in range(1, width + 1):
        for columns in map(list, combinations(range(width), size)):
            part = np.linalg.lstsq(scaled[:, columns], wanted, rcond=None)[0]
            if (part < 0).any():
                continue
            away = scaled[:, columns] @ part - wanted
            if (error := float(away @ away)) < least:
                best, least = np.zeros(width), error
                best[columns] = part
    found: Floats = best / scale
    return found
