"""What decides which KV cache a model writes, beside its name and the layout of its cache."""

import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

_MODEL = ("revision", "code_revision", "quantization", "quantization_config", "dtype")
_CACHE = ("cache_dtype", "mamba_cache_dtype", "mamba_ssm_cache_dtype", "kv_cache_dtype_skip_layers")
# Names of a place and of a library: the bytes are the same.
_LEFT_OUT = ("_name_or_path", "transformers_version")


def model_digest(config: "VllmConfig") -> str:
    """SHA-256 of what a model computes with, the same in every process and on every machine.

    That is a revision, quantization, the type of activations, and the model's configuration
    with all overrides, such as the scaling of positions; of a drafter too, as its cache is kept.
    """
    parts: dict[str, Any] = {
        "target": _of_model(config.model_config),
        "cache": {name: getattr(config.cache_config, name, None) for name in _CACHE},
    }
    speculative = config.speculative_config
    drafter = None if speculative is None else speculative.draft_model_config
    if drafter is not None:
        parts["drafter"] = _of_model(drafter) | {"name": model_fingerprint(drafter.model)}
    text = json.dumps(_plain(parts), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def model_fingerprint(model: str) -> str:
    """The model's name; of a folder also names, sizes and times of its files, so of new weights."""
    folder = Path(model)
    if not folder.is_dir():
        return model
    files = sorted(path for path in folder.iterdir() if path.is_file())
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return f"{model} {hashlib.sha256(repr(stats).encode()).hexdigest()}"


def machine() -> str | None:
    """The processor's kind, where it decides how attention lays out a block: on the CPU engine."""
    if not current_platform.is_cpu():
        return None
    capability = torch.backends.cpu.get_cpu_capability()
    has_amx = torch.cpu.get_capabilities().get("amx_tile", False)
    return f"{platform.machine()} {capability}{' AMX' if has_amx else ''}"


def _of_model(config: "ModelConfig") -> dict[str, Any]:
    parts = {name: getattr(config, name, None) for name in _MODEL}
    own = config.hf_config.to_dict()
    return parts | {"own": {name: it for name, it in own.items() if name not in _LEFT_OUT}}


def _plain(value: object) -> Any:
    """What JSON can say; of other objects their kind, as their text may hold an address."""
    if isinstance(value, Mapping):
        return {str(key): _plain(it) for key, it in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(it) for it in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value) if isinstance(value, torch.dtype) else type(value).__qualname__
