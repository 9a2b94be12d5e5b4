"""Traces of requests: recorded in public formats, or generated from a seed."""

from hybrid_blocks.trace.errors import DamagedLineError, TraceError
from hybrid_blocks.trace.generate import generate_trace
from hybrid_blocks.trace.lines import OnError
from hybrid_blocks.trace.read import AUTO, FORMATS, read_trace
from hybrid_blocks.trace.sharing import Sharing, measure_sharing
from hybrid_blocks.trace.trace import Trace

__all__ = [
    "AUTO",
    "FORMATS",
    "DamagedLineError",
    "OnError",
    "Sharing",
    "Trace",
    "TraceError",
    "generate_trace",
    "measure_sharing",
    "read_trace",
]
