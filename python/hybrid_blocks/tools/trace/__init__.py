"""Traces of requests: recorded in public formats, or generated from a seed."""

from hybrid_blocks.tools.trace.errors import DamagedLineError, TraceError
from hybrid_blocks.tools.trace.lines import OnError
from hybrid_blocks.tools.trace.read import AUTO, FORMATS, read_trace
from hybrid_blocks.tools.trace.sharing import (
    SharedPrefixes,
    Sharing,
    measure_sharing,
    shared_prefixes,
)
from hybrid_blocks.tools.trace.trace import Trace
from hybrid_blocks.tools.trace.workloads import SEATS, WORKLOADS, generate_workload

__all__ = [
    "AUTO",
    "FORMATS",
    "SEATS",
    "WORKLOADS",
    "DamagedLineError",
    "OnError",
    "SharedPrefixes",
    "Sharing",
    "Trace",
    "TraceError",
    "generate_workload",
    "measure_sharing",
    "read_trace",
    "shared_prefixes",
]
