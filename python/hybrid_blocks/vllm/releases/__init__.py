"""The differences between the tested releases of vLLM, a module each.

Everything else in the adapter is the same in all of them. A new release gets a module whose class
derives from the one before and overrides what changed; ``tested.txt`` lists the releases.
"""

from importlib import import_module

import vllm

from hybrid_blocks.vllm.releases.v0_31 import Release
from hybrid_blocks.vllm.surface.support import nearest

_name = nearest(vllm.__version__)

installed: Release = import_module(f"{__name__}.v{_name.replace('.', '_')}").Release(_name)
"""The release that is installed, or the nearest of those that are tested."""
