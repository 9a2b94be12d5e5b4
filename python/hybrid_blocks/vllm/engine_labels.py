"""The labels that tell an engine's figures from another's: those of vLLM's own figures.

A manager of blocks is not given vLLM's configuration. An engine resolves its block sizes from the
configuration just before it makes its scheduler, so this module takes note of it there.
"""

from typing import Any

from vllm.v1.core import kv_cache_utils

vllm_resolve_kv_cache_block_sizes = getattr(kv_cache_utils, "resolve_kv_cache_block_sizes", None)

_SEEN: dict[str, str] = {}


def resolve_kv_cache_block_sizes(*args: Any, **kwargs: Any) -> Any:
    """Resolve as vLLM does, and take note of whose sizes they are."""
    note(kwargs.get("vllm_config", args[-1] if args else None))
    return vllm_resolve_kv_cache_block_sizes(*args, **kwargs)  # type: ignore[misc]


def note(vllm_config: Any) -> None:
    """Take note of the engine that this process makes next."""
    model = getattr(vllm_config, "model_config", None)
    parallel = getattr(vllm_config, "parallel_config", None)
    _SEEN["model_name"] = str(getattr(model, "served_model_name", ""))
    _SEEN["engine"] = str(getattr(parallel, "data_parallel_index", 0))


def engine_labels() -> dict[str, str]:
    """Return the labels of the engine that this process made last."""
    return {"model_name": "", "engine": "0", **_SEEN}


def replacements() -> tuple[tuple[Any, Any], ...]:
    """Return what stands for vLLM's function, if the installed vLLM has it."""
    if vllm_resolve_kv_cache_block_sizes is None:
        return ()
    return ((vllm_resolve_kv_cache_block_sizes, resolve_kv_cache_block_sizes),)
