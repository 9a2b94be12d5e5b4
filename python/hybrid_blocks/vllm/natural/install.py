"""The swap of vLLM's planning, scheduler methods and manager for those of level ``natural``."""

from collections.abc import Callable
from typing import Any

from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.platforms.interface import Platform

from hybrid_blocks.vllm.manager.kv_cache_manager import KVCacheManager
from hybrid_blocks.vllm.natural import (
    logged_capacity,
    planning,
    platform,
    prefill_checkpoints,
    reserved,
    scheduling,
)
from hybrid_blocks.vllm.natural.manager import NaturalKVCacheManager
from hybrid_blocks.vllm.scheduler.hooks import when_made
from hybrid_blocks.vllm.swap import back, replace, swap
from hybrid_blocks.vllm.worker import runner_hooks


def install_planning() -> None:
    """Put this package's planning in place of vLLM's. A second call changes nothing."""
    swap(functions())
    _install_methods()


def uninstall_planning() -> None:
    """Put vLLM's planning back."""
    swap(back(functions()))
    _uninstall_methods()


def _install_methods() -> None:
    for name, replacement in _methods().items():
        setattr(Platform, name, classmethod(replacement))
    MambaBase.get_kv_cache_spec = prefill_checkpoints.get_kv_cache_spec  # type: ignore[method-assign]


def _uninstall_methods() -> None:
    for name in _methods():
        setattr(Platform, name, _ORIGINALS[name])
    original = prefill_checkpoints.vllm_get_kv_cache_spec
    MambaBase.get_kv_cache_spec = original  # type: ignore[method-assign]
    runner_hooks.uninstall()


def functions() -> tuple[tuple[Any, Any], ...]:
    """Return vLLM's functions and this package's."""
    return (
        (platform.vllm_customize_attention_spec, platform.customize_attention_spec),
        (
            logged_capacity.vllm_get_max_concurrency_for_kv_cache_config,
            logged_capacity.get_max_concurrency_for_kv_cache_config,
        ),
        *planning().FUNCTIONS,
    )


def _methods() -> dict[str, Any]:
    return {
        "_align_hybrid_block_size": platform.align_hybrid_block_size,
        "_find_non_ssm_backends": platform.find_non_ssm_backends,
        **planning().METHODS,
    }


_ORIGINALS = {name: Platform.__dict__[name] for name in _methods()}


_UNDO: list[Callable[[], None]] = []


def install() -> None:
    """Let our manager serve, and vLLM plan in slabs once its ``functions`` are swapped as well."""
    KVCacheManager.natural = NaturalKVCacheManager
    _UNDO.extend(replace(*replaced) for replaced in scheduling.REPLACED)
    hooks = (scheduling.count_in_slabs, scheduling.count_tokens, reserved.publish)
    _UNDO.extend(when_made(hook) for hook in hooks)
    _install_methods()


def uninstall() -> None:
    """Let vLLM plan, split and pause as it would by itself."""
    while _UNDO:
        _UNDO.pop()()
    _uninstall_methods()
