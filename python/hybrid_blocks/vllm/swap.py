"""Puts one class or function in the place of another, wherever a loaded module holds it."""

import sys
from typing import Any

_OWN = "hybrid_blocks."


def swap(original: Any, replacement: Any) -> None:
    """Let every loaded module, but this package's, that names ``original`` name ``replacement``.

    Modules loaded later import the new name from the module that defines it. Classes derived from
    ``original`` derive from ``replacement`` from now on. Nothing on disk changes; swapping back
    undoes it.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith(_OWN):
            continue
        namespace = getattr(module, "__dict__", None) or {}
        for attribute in [key for key, value in namespace.items() if value is original]:
            setattr(module, attribute, replacement)
    derived: type
    for derived in original.__subclasses__() if isinstance(original, type) else ():
        if derived is not replacement and not derived.__module__.startswith(_OWN):
            derived.__bases__ = tuple(
                replacement if base is original else base for base in derived.__bases__
            )
