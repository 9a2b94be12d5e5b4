"""The parts of vLLM's planning that level ``natural`` replaces."""

from typing import Any

from vllm.platforms.interface import Platform

from hybrid_blocks.vllm import releases
from hybrid_blocks.vllm.natural import concurrency, platform
from hybrid_blocks.vllm.swap import back, swap


def install() -> None:
    """Put this package's planning in place of vLLM's. A second call changes nothing."""
    swap(_functions())
    for name, replacement in _methods().items():
        setattr(Platform, name, classmethod(replacement))


def uninstall() -> None:
    """Put vLLM's planning back."""
    swap(back(_functions()))
    for name in _methods():
        setattr(Platform, name, _ORIGINALS[name])


def _functions() -> tuple[tuple[Any, Any], ...]:
    return (
        (platform.vllm_customize_attention_spec, platform.customize_attention_spec),
        (
            concurrency.vllm_get_max_concurrency_for_kv_cache_config,
            concurrency.get_max_concurrency_for_kv_cache_config,
        ),
        *releases.installed.planning().FUNCTIONS,
    )


def _methods() -> dict[str, Any]:
    return {
        "_align_hybrid_block_size": platform.align_hybrid_block_size,
        "_find_non_ssm_backends": platform.find_non_ssm_backends,
        **releases.installed.planning().METHODS,
    }


_ORIGINALS = {name: Platform.__dict__[name] for name in _methods()}
