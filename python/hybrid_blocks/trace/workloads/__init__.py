"""Generated workloads of known kinds, each a function of its seed."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from hybrid_blocks.trace.builder import TraceBuilder
from hybrid_blocks.trace.errors import TraceError
from hybrid_blocks.trace.generate import generate_trace
from hybrid_blocks.trace.trace import Trace
from hybrid_blocks.trace.workloads.agents import Agents
from hybrid_blocks.trace.workloads.chats import Chats
from hybrid_blocks.trace.workloads.documents import Documents
from hybrid_blocks.trace.workloads.seats import SEATS, generate_seats
from hybrid_blocks.trace.workloads.sessions import Kind, fill
from hybrid_blocks.trace.workloads.single import SinglePrompts
from hybrid_blocks.trace.workloads.templates import Templates
from hybrid_blocks.trace.workloads.tools import BranchingTools

BRANCHING: Final = "branching"
"""`generate_trace`: short conversations, some of which branch."""

WORKLOADS: Mapping[str, tuple[Kind, ...]] = {
    "conversations": (Chats(),),
    "agents": (Agents(),),
    "documents": (Documents(),),
    "tools": (BranchingTools(),),
    "single": (SinglePrompts(),),
    "templates": (Templates(),),
    "changing": (Documents(), Chats()),
}
"""Kinds of sessions by the name of ``--workload``; several follow each other in equal parts."""


def generate_workload(
    name: str, seed: int = 0, num_requests: int = 2000, num_seats: int = 16
) -> Trace:
    """Make a workload; equal arguments make equal workloads.

    Requests are in the order of their arrival if none ever waited. ``num_seats`` is for ``seats``,
    which draws nothing: every seed makes the same.

    Raises: TraceError: there is no workload of this name, or its number of requests is 0.
    """
    if num_requests < 1:
        raise TraceError(f"num_requests is {num_requests}; it must be at least 1")
    if name == BRANCHING:
        return generate_trace(seed).head(num_requests)
    if name == SEATS:
        return generate_seats(num_seats, num_requests)
    if name not in WORKLOADS:
        known = ", ".join((BRANCHING, *WORKLOADS, SEATS))
        raise TraceError(f"{name!r} is no generated workload; known are {known}")
    return generate_mix(WORKLOADS[name], seed, num_requests, f"{name}, seed {seed}")


def generate_mix(kinds: tuple[Kind, ...], seed: int, num_requests: int, name: str) -> Trace:
    """Make a workload of kinds that follow each other, each with an equal part of the requests."""
    builder, rng, time = TraceBuilder(name), np.random.default_rng(seed), 0.0
    for part, kind in enumerate(kinds, start=1):
        missing = num_requests * part // len(kinds) - len(builder)
        time = fill(kind, builder, rng, missing, time)
    return builder.build()


__all__ = [
    "BRANCHING",
    "SEATS",
    "WORKLOADS",
    "Agents",
    "BranchingTools",
    "Chats",
    "Documents",
    "Kind",
    "SinglePrompts",
    "Templates",
    "generate_mix",
    "generate_seats",
    "generate_workload",
]
