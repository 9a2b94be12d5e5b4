"""vLLM's own variables before a pasted command, where they change figures or the level."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.model.layer import LatentAttention, State
from hybrid_blocks.tools.read import effects, values
from hybrid_blocks.tools.read.options import recorded, shown

PARTITION: Final = "VLLM_PP_LAYER_PARTITION"
RUNNER: Final = "VLLM_USE_V2_MODEL_RUNNER"
PLUGINS: Final = "VLLM_PLUGINS"
SIMPLE_OFFLOAD: Final = "VLLM_USE_SIMPLE_KV_OFFLOAD"
INVARIANT: Final = "VLLM_BATCH_INVARIANT"
CPU_SPACE: Final = "VLLM_CPU_KVCACHE_SPACE"

SHOWN: Final = (PARTITION, RUNNER, PLUGINS, SIMPLE_OFFLOAD, INVARIANT)
"""Variables that a plan depends on."""

_OURS: Final = "hybrid_blocks"
_INVARIANT_BACKENDS: Final = (
    *("FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION"),
    *("FLASH_ATTN_MLA", "TRITON_MLA"),
)
_ELSEWHERE: Final = {"VLLM_ATTENTION_BACKEND": "--attention-backend"}


def is_on(environment: Mapping[str, str], name: str) -> bool | None:
    """Read a switch as vLLM does; None where it is not set."""
    text = environment.get(name)
    if text is None:
        return None
    try:
        return bool(int(text))
    except ValueError:
        raise PlanError(f"{name}={shown(text)}: vLLM reads a whole number; give 0 or 1") from None


def partition_of(environment: Mapping[str, str]) -> tuple[int, ...] | None:
    """Read the layers of each pipeline stage from vLLM's variable; None where it is not set."""
    text = environment.get(PARTITION)
    if text is None:
        return None
    try:
        return tuple(map(values.count, text.split(",")))
    except ValueError:
        raise PlanError(
            f"{PARTITION}={shown(text)}: give the layers of each stage, for example 48,16"
        ) from None


def leaves_plugin_out(environment: Mapping[str, str]) -> str | None:
    """Return why vLLM does not load this package, None where it does."""
    text = environment.get(PLUGINS)
    if text is None or _OURS in text.split(","):
        return None
    return f"{PLUGINS}={shown(text)} leaves {_OURS} out: add it to the list"


def invariant_backend(
    model: Model, backend: str | None, environment: Mapping[str, str]
) -> str | None:
    """Return the attention backend; ``VLLM_BATCH_INVARIANT`` leaves fewer to choose from."""
    if not is_on(environment, INVARIANT):
        return backend
    refusal = f"{INVARIANT}={shown(environment[INVARIANT])}: vLLM refuses"
    if any(isinstance(layer.cache, State) for layer in model.layers):
        raise PlanError(f"{refusal} recurrent states with it; leave it out")
    latents = [layer.cache for layer in model.layers if layer.cache.kind == LatentAttention.kind]
    if any(getattr(cache, "sparse", True) for cache in latents):
        raise PlanError(f"{refusal} sparse latent attention with it; leave it out")
    if backend is not None and backend not in _INVARIANT_BACKENDS:
        raise PlanError(
            f"{refusal} --attention-backend {shown(backend)} with it; it takes "
            f"{', '.join(_INVARIANT_BACKENDS)}"
        )
    return backend or ("TRITON_MLA" if latents else None)


def check(model: Model, environment: Mapping[str, str], *, is_strict: bool) -> None:
    """Refuse variables that cannot be planned.

    With ``is_strict``, which is ``--fail-on-environ-validation``, vLLM takes no unknown ones.
    """
    kinds = {layer.cache.kind for layer in model.layers}
    for name, (harmless, kind, why) in effects.VARIABLES.items():
        value = environment.get(name)
        if value is not None and value not in harmless and (kind is None or kind in kinds):
            raise PlanError(f"{name}={shown(value)}: {why}")
    if is_strict and (found := _unknown(environment)):
        raise PlanError(f"--fail-on-environ-validation: {_unknown_variable(found[0])}")


def notes(environment: Mapping[str, str]) -> list[str]:
    """Say which variables vLLM ignores."""
    warnings = [f"{_unknown_variable(name)}; it is ignored" for name in _unknown(environment)]
    if CPU_SPACE in environment:
        warnings.append(
            f"{CPU_SPACE} is the memory of vLLM's CPU engine; these figures are of a GPU, where "
            "it is ignored"
        )
    return warnings


def _unknown(environment: Mapping[str, str]) -> list[str]:
    known = recorded().variables
    return sorted(name for name in environment if name.startswith("VLLM_") and name not in known)


def _unknown_variable(name: str) -> str:
    near = get_close_matches(name, recorded().variables, n=1)
    meant = _ELSEWHERE.get(name) or (near[0] if near else None)
    hint = f" (near it: {meant})" if meant else ""
    return f"vLLM {recorded().release} knows no variable {shown(name)}{hint}"
