"""What the tests of level ``natural`` share."""

from collections.abc import Iterator

import pytest
from hybrid_blocks.vllm import installation
from hybrid_blocks.vllm.level import VARIABLE, Level


@pytest.fixture
def natural_level(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let vLLM's schedulers be managed at level ``natural``."""
    monkeypatch.setenv(VARIABLE, Level.NATURAL)
    installation.install()
    yield
    installation.uninstall()
