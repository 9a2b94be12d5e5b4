"""The differences between the tested releases of vLLM, a module each.

Everything else in the adapter is the same in all of them. A release that changes something has a
module; its class derives from the one before. ``tested.txt`` lists the releases, and
``make add-vllm VERSION=…`` adds one.
"""

from importlib import import_module
from pkgutil import iter_modules

import vllm

from hybrid_blocks.vllm.releases.v0_31 import Release
from hybrid_blocks.vllm.surface.support import nearest, ordered

_MODULES = {module.name[1:].replace("_", "."): module.name for module in iter_modules(__path__)}


def release(name: str) -> Release:
    """Return the answers for ``name``: those of the last module that is not after it."""
    last = max((it for it in _MODULES if ordered(it) <= ordered(name)), key=ordered)
    found: Release = import_module(f"{__name__}.{_MODULES[last]}").Release(name)
    return found


installed = release(nearest(vllm.__version__))
"""The release that is installed, or the nearest of those that are tested."""
