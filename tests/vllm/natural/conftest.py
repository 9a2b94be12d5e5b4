"""Fixtures that the tests of level ``natural`` share."""

from collections.abc import Iterator

import pytest
from hybrid_blocks.vllm.level import VARIABLE, Level
from installed import installed
from quick_swap import quick_swap


@pytest.fixture(autouse=True, scope="module")
def few_modules_are_searched() -> Iterator[None]:
    """Let the plugin come and go quickly."""
    with quick_swap():
        yield


@pytest.fixture
def natural_level(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let vLLM's schedulers be managed at level ``natural``."""
    monkeypatch.setenv(VARIABLE, Level.NATURAL)
    with installed():
        yield
