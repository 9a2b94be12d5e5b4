"""Replaces classes and functions by others, wherever a loaded module holds them."""

import sys
from collections.abc import Sequence
from typing import Any

_OWN = "hybrid_blocks."


def swap(pairs: Sequence[tuple[Any, Any]]) -> None:
    """Let every loaded module, but this package's, that names a first name the second instead.

    Modules loaded later import the new name from the module that defines it. Classes derived from
    a first derive from the second from now on. Nothing on disk changes; to swap back undoes it.
    """
    replacements = {id(original): replacement for original, replacement in pairs}
    originals = replacements.keys()
    for name, module in list(sys.modules.items()):
        namespace = getattr(module, "__dict__", None) or {}
        # Most modules name none of them; there are thousands.
        if name.startswith(_OWN) or originals.isdisjoint(map(id, namespace.values())):
            continue
        for attribute, value in list(namespace.items()):
            if id(value) in replacements:
                setattr(module, attribute, replacements[id(value)])
    for original, replacement in pairs:
        if isinstance(original, type):
            _derive(original, replacement)


def _derive(original: type, replacement: type) -> None:
    """Let classes derived from ``original``, but this package's, derive from ``replacement``."""
    derived: type
    for derived in original.__subclasses__():
        if derived is not replacement and not derived.__module__.startswith(_OWN):
            derived.__bases__ = tuple(
                replacement if base is original else base for base in derived.__bases__
            )


def back(pairs: Sequence[tuple[Any, Any]]) -> tuple[tuple[Any, Any], ...]:
    """Return the pairs that undo the swap of ``pairs``."""
    return tuple((replacement, original) for original, replacement in pairs)
