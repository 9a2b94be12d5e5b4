"""The differences between the tested releases of vLLM, a module each.

Everything else in the adapter is the same in all of them. A new release gets a module whose class
derives from the one before and overrides what changed.
"""

import vllm

from hybrid_blocks.vllm.releases import v0_32, v0_33
from hybrid_blocks.vllm.support import nearest

RELEASES: dict[str, v0_32.Release] = {
    release.name: release for release in (v0_32.Release(), v0_33.Release())
}

installed = RELEASES[nearest(vllm.__version__)]
"""The release that is installed, or the nearest of those that are tested."""
