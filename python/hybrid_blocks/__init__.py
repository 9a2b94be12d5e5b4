"""KV-cache block manager for hybrid LLMs, written in Rust."""

import warnings

try:
    from hybrid_blocks._core import (
        BlockHasher,
        BlockManager,
        CheckpointPolicy,
        GroupSpec,
        HashChain,
        build_info,
    )
except ImportError as error:
    # The kernels need tensors, not the core: they import from a checkout that was never built,
    # which has the core's stubs alone.
    if error.name != "hybrid_blocks._core" or error.path is not None:
        raise
    __all__ = []
else:
    from hybrid_blocks.errors import HybridBlocksError
    from hybrid_blocks.hashing import block_hasher

    __version__: str = build_info()["version"]

    if build_info()["profile"] == "debug":
        warnings.warn(
            "hybrid_blocks was built without optimisation and is many times slower; "
            "build it with `maturin develop --release`",
            RuntimeWarning,
            stacklevel=2,
        )

    __all__ = [
        "BlockHasher",
        "BlockManager",
        "CheckpointPolicy",
        "GroupSpec",
        "HashChain",
        "HybridBlocksError",
        "__version__",
        "block_hasher",
        "build_info",
    ]
