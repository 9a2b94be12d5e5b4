"""Traces of requests: recorded in public formats, or generated from a seed."""

from hybrid_blocks.trace.errors import DamagedLineError, TraceError
from hybrid_blocks.trace.generate import generate_trace
from hybrid_blocks.trace.lines import OnError
from hybrid_blocks.trace.read import AUTO, FORMATS, read_trace
from hybrid_blocks.trace.servegen import generate_clients
from hybrid_blocks.trace.sharing import (
    SharedPrefixes,
    Sharing,
    measure_sharing,
    shared_prefixes,
)
from hybrid_blocks.trace.trace import Trace
from hybrid_blocks.trace.workloads import BRANCHING, SEATS, WORKLOADS, generate_workload

__all__ = [
    "AUTO",
    "BRANCHING",
    "FORMATS",
    "SEATS",
    "WORKLOADS",
    "DamagedLineError",
    "OnError",
    "SharedPrefixes",
    "Sharing",
    "Trace",
    "TraceError",
    "generate_clients",
    "generate_trace",
    "generate_workload",
    "measure_sharing",
    "read_trace",
    "shared_prefixes",
]
