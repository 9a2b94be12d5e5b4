"""What differs between the releases of vLLM that this package works inside, a module each.

Everything else in the adapter is the same in all of them. A new release gets a module whose class
derives from the one before and overrides what changed.
"""

import vllm

from hybrid_blocks.vllm.releases import v0_32, v0_33
from hybrid_blocks.vllm.support import release_of

RELEASES: dict[str, v0_32.Release] = {
    release.name: release for release in (v0_32.Release(), v0_33.Release())
}

installed = RELEASES.get(str(release_of(vllm.__version__)), v0_33.Release())
"""The release that is installed; the newest one stands for those that are not supported."""
