"""Which engines level ``manager`` covers."""

from typing import Any

from vllm.v1.kv_cache_interface import KVCacheConfig, MambaSpec

from hybrid_blocks.vllm import releases, specs


def unsupported_reason(
    kv_cache_config: KVCacheConfig,
    *,
    hash_block_size: int = 1,
    **_: Any,
) -> str | None:
    """Return why an engine needs vLLM's own managers, or ``None`` if it does not.

    Takes what vLLM's ``KVCacheManager`` is given.
    """
    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        spec = group.kv_cache_spec
        manager = releases.installed.manager_class(group)
        if manager not in specs.MANAGERS:
            return f"group {number} is managed by {getattr(manager, '__name__', manager)}"
        is_scratch = not specs.kind_of(spec).is_cached
        if not spec.prefix_cacheable and not is_scratch and spec.block_size % hash_block_size:
            return (
                f"group {number} takes no part in prefix caching and has blocks of "
                f"{spec.block_size} tokens over hash blocks of {hash_block_size}"
            )
        if isinstance(spec, MambaSpec) and spec.mamba_cache_mode not in ("none", "align"):
            return f"Mamba cache mode {spec.mamba_cache_mode!r}"
    return None
