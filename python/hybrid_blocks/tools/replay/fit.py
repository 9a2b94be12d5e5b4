"""The time of a step, fitted to requests whose times an engine recorded."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from hybrid_blocks.geometry.step_time import KNOTS, StepTime
from hybrid_blocks.tools.replay.config import ReplayError
from hybrid_blocks.tools.trace.recorded import Record

LEAST: Final = 20
"""Requests with times that a fit needs."""

_TURNS: Final = 10
_LEAST_SHARE: Final = 0.05

Floats = npt.NDArray[np.float64]


def fit(records: Sequence[Record], max_num_batched_tokens: int) -> StepTime:
    """Return the coefficients with which each phase of each request took its recorded time.

    A phase is a prompt's computation or an answer's. Its steps compute what other requests' phases
    had of it, in proportion to the time that both ran. Least squares give the time of a step, and
    of each prompt token, decoding request and token of context in it, 0 or more. Errors are over
    fitted times, as those over recorded times would favour quick phases.

    Raises:
        ReplayError: fewer requests than `LEAST` have times.
    """
    rows = [
        (it.arrival + it.scheduled, it.arrival + it.first_token, it.arrival + it.finished, it)
        for it in records
        if it.scheduled is not None and it.first_token is not None and it.finished is not None
    ]
    if len(rows) < LEAST:
        raise ReplayError(
            f"{len(rows)} requests of the record have times; a clock needs {LEAST} of them"
        )
    start, first, end = (np.array(column) for column in list(zip(*rows, strict=True))[:3])
    found = np.array([row[3].found_tokens or 0 for row in rows])
    prompt = np.array([row[3].prompt_tokens for row in rows], dtype=float)
    decodes = np.array([max(row[3].output_tokens - 1, 0) for row in rows], dtype=float)
    computed = np.maximum(prompt - found, 1)
    context = decodes * (prompt + decodes / 2)
    begins, ends = np.concatenate((start, first)), np.concatenate((first, end))
    steps = np.concatenate((np.ceil(computed / max_num_batched_tokens), decodes))
    prompts = _within(begins, ends, start, first)
    answers = _within(begins, ends, first, end)
    work = np.column_stack((steps, prompts @ computed, answers @ decodes, answers @ context))
    took = ends - begins
    kept = (took > 0) & (steps > 0)
    ms, token, decode, read = _fitted(1e-3 * work[kept], took[kept])
    return StepTime(
        ms=(ms,) * len(KNOTS),
        prompt=token,
        decode=decode,
        context=read,
        source=f"fitted to {len(rows)} recorded requests",
    )


def _within(begins: Floats, ends: Floats, start: Floats, end: Floats) -> Floats:
    """Return which share of each phase from ``start`` to ``end`` lies in each time, ``[n, m]``."""
    low = np.maximum(begins[:, np.newaxis], start)
    both = np.minimum(ends[:, np.newaxis], end) - low
    shares: Floats = np.clip(both, 0, None) / np.maximum(end - start, 1e-9)
    return shares


def _fitted(columns: Floats, took: Floats) -> list[float]:
    """Solve for times by factors of 0 or more, each time weighted by what the last turn gave."""
    times = took
    for _ in range(_TURNS):
        factors = _least_squares(columns / times[:, np.newaxis], took / times)
        # A phase that a fit takes for empty would have all the weight.
        times = np.maximum(columns @ factors, _LEAST_SHARE * took)
    return [float(factor) for factor in factors]


def _least_squares(columns: Floats, sums: Floats) -> Floats:
    """Solve for sums by factors of 0 or more: the most negative column leaves first."""
    used = list(range(columns.shape[1]))
    while True:
        factors, *_ = np.linalg.lstsq(columns[:, used], sums, rcond=None)
        if (least := int(np.argmin(factors))) < 0 or factors[least] >= 0:
            break
        del used[least]
    found = np.zeros(columns.shape[1])
    found[used] = factors
    return found
