"""Fixtures that the oracles share."""

from collections.abc import Iterator

import pytest
from quick_swap import quick_swap


@pytest.fixture(autouse=True, scope="module")
def few_modules_are_searched() -> Iterator[None]:
    """Let the plugin come and go quickly."""
    with quick_swap():
        yield
