"""A recorded file, as the engine served it: when each request ran, answered and ended."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from hybrid_blocks.sizing.errors import SizingError
from hybrid_blocks.trace import OnError, Trace, read_trace
from hybrid_blocks.trace.lines import LineReader
from hybrid_blocks.trace.read import detect_format
from hybrid_blocks.trace.recorded import Record, parse

Floats = npt.NDArray[np.float64]

LEAST: Final = 20
"""Requests with times that a fit needs."""

_NEVER: Final = float("nan")


@dataclass(frozen=True)
class Served:
    """Requests in the order of their arrival, shape ``[n]`` each; NaN where the file does not tell.

    Attributes:
        trace: the same requests for a replay.
        arrival: seconds.
        scheduled: when a request first ran, in seconds of the same clock.
        first_token: when its first token was there.
        finished: when its last token was there.
        prompt: tokens of its prompt.
        found: those that the engine found in its cache.
        output: tokens of its answer.
    """

    trace: Trace
    arrival: Floats
    scheduled: Floats
    first_token: Floats
    finished: Floats
    prompt: Floats
    found: Floats
    output: Floats

    @property
    def is_timed(self) -> npt.NDArray[np.bool_]:
        """Which requests tell all their times."""
        return ~np.isnan(self.scheduled + self.first_token + self.finished)


def read_served(path: Path, on_error: OnError = "raise") -> Served:
    """Read a file of ``HYBRID_BLOCKS_RECORD``.

    Raises:
        TraceError: it cannot be read.
        SizingError: it is another trace, or too few of its requests tell their times.

    """
    if (found := detect_format(path)) != "recorded":
        raise SizingError(
            f"--fit {path} is a trace in the format {found}, which tells no times; record one with "
            "HYBRID_BLOCKS_RECORD=traffic.jsonl.zst vllm serve MODEL"
        )
    trace = read_trace(path, found, on_error)
    records: list[Record] = list(LineReader(path, on_error).parse(parse))
    records.sort(key=lambda record: record.arrival)
    arrival = np.array([record.arrival for record in records])
    arrival -= arrival[0]

    def column(name: str) -> Floats:
        told = (getattr(record, name) for record in records)
        return np.array([_NEVER if one is None else one for one in told], dtype=np.float64)

    prompt = column("prompt_tokens")
    served = Served(
        trace=trace,
        arrival=arrival,
        scheduled=arrival + column("scheduled"),
        first_token=arrival + column("first_token"),
        finished=arrival + column("finished"),
        prompt=prompt,
        found=np.minimum(np.nan_to_num(column("found_tokens")), prompt - 1),
        output=np.maximum(column("output_tokens"), 1),
    )
    if (timed := int(served.is_timed.sum())) < LEAST:
        again = "with this version and without --disable-log-stats"
        if timed == len(records):
            again = "for longer"
        raise SizingError(
            f"--fit {path}: {timed} of {len(records)} requests tell when they ran, answered and "
            f"ended, and a fit needs {LEAST}; record again {again}"
        )
    return served
