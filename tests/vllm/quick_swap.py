"""The swap of vLLM's names where tests install the plugin hundreds of times.

A swap searches all loaded modules, thousands of them, and takes longer than most tests. Here it
passes by the modules that had none of the names when they were first seen.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

from hybrid_blocks.vllm import install
from hybrid_blocks.vllm import swap as swapping
from hybrid_blocks.vllm.surface import Tier
from hybrid_blocks.vllm.worker import block_copies
from surface import INSTALLED

# Tests patch names in these, so that they are searched whatever they held at first.
_ALWAYS = "vllm.v1."


class _Known:
    """Stands for ``sys`` where modules are searched."""

    def __init__(self) -> None:
        pairs = (*install._REPLACEMENTS, *block_copies.REPLACEMENTS, *_of_planning())
        self._names = {id(one) for pair in pairs for one in pair}
        self._seen: dict[str, ModuleType] = {}
        self._holders: dict[str, ModuleType] = {}

    @property
    def modules(self) -> dict[str, ModuleType]:
        # A swap reads this for each name that it sets: the search is only for new modules.
        if self._seen != sys.modules:
            self._look()
        return self._holders

    def _look(self) -> None:
        loaded = dict(sys.modules)
        for name, module in loaded.items():
            if self._seen.get(name) is not module:
                self._holders.pop(name, None)
                namespace = getattr(module, "__dict__", None) or {}
                if name.startswith(_ALWAYS) or not self._names.isdisjoint(
                    map(id, namespace.values())
                ):
                    self._holders[name] = module
        for name in self._seen.keys() - loaded:
            self._holders.pop(name, None)
        self._seen = loaded


def _of_planning() -> tuple[tuple[Any, Any], ...]:
    if not INSTALLED.reaches(Tier.NATURAL):
        return ()
    from hybrid_blocks.vllm.natural import install  # noqa: PLC0415 - not for all releases

    return install.functions()


_KNOWN = _Known()


@contextmanager
def quick_swap() -> Iterator[None]:
    """Search few modules for as long as the context lasts."""
    _ = _KNOWN.modules  # before a test patches any of them
    with patch.object(swapping, "sys", _KNOWN):
        yield
