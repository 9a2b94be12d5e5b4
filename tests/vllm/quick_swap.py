"""The swap of vLLM's names where tests install the plugin hundreds of times.

A swap searches all loaded modules, thousands of them, and takes longer than most tests. Here it
searches those parts of vLLM that name what is replaced; `oracle/test_quick_swap.py` holds the list.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from unittest.mock import patch

from hybrid_blocks.vllm import swap as swapping

_PARTS = ("vllm.v1.", "vllm.distributed.", "vllm.entrypoints.")


class _Few:
    """Stands for ``sys`` where modules are searched."""

    @property
    def modules(self) -> dict[str, ModuleType]:
        loaded = list(sys.modules.items())
        return {name: module for name, module in loaded if name.startswith(_PARTS)}


@contextmanager
def quick_swap() -> Iterator[None]:
    """Search few modules for as long as the context lasts."""
    with patch.object(swapping, "sys", _Few()):
        yield
