"""vLLM's code on a machine without a GPU."""

import os

from hybrid_blocks.tools.doctor.environment import ON_CPU, QUIETLY


def allow_no_gpu() -> None:
    """Let vLLM be imported without a GPU: it needs one unless its platform is set before."""
    for name, value in (QUIETLY | ON_CPU).items():
        os.environ.setdefault(name, value)
