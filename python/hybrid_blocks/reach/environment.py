"""Environment variables for a while."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

MODEL_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"


@contextmanager
def environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Run with these variables, and then as before."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ |= wanted
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
