"""The facts that decide the bytes of a model's cache, beside the layout of the cache."""

import hashlib
import json
import platform
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
import transformers
from vllm.platforms import current_platform

from hybrid_blocks.offload import same_bytes
from hybrid_blocks.offload.canonical import UnwritableError, Writer
from hybrid_blocks.offload.environment import environment
from hybrid_blocks.offload.fingerprint import model_content

if TYPE_CHECKING:
    from vllm.config import ModelConfig, SpeculativeConfig, VllmConfig

# Rotations that stay the same however long requests may be.
_ROPES_OF_ANY_LENGTH: Final = (
    *("default", "linear", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "mrope"),
    *("bailing_mrope", "proportional", "mllama4", "openpangu"),
)
# Rotations for short and for long requests, of which the longest length picks one.
_TWO_ROPES: Final = ("longrope", "su")
# Models that shrink images by the longest length, and those that scale attention by it.
_ANY_LENGTH_COUNTS: Final = (
    "NemotronH_Nano_VL_V2",
    "NemotronH_Nano_Omni_Reasoning_V3",
    "NemotronH_Super_Omni_Reasoning_V3",
    "NemotronH_Omni_Reasoning_V3",
)
_LLAMA_4: Final = ("Llama4ForCausalLM", "Llama4ForConditionalGeneration")
_LLAMA_4_IS_LONG: Final = 32768
# Formats of files whose weights are read; others make them, some by the seed.
_READ_FORMATS: Final = (
    *("auto", "hf", "safetensors", "pt", "npcache", "mistral", "fastsafetensors"),
    *("instanttensor", "runai_streamer", "runai_streamer_sharded", "sharded_state", "tensorizer"),
    "gguf",
)


def model_digest(config: "VllmConfig") -> str:
    """SHA-256 of what an engine computes with, the same in every process and on every machine.

    That is all of its configuration but the fields of ``same_bytes``: models with all overrides,
    quantization and options, and what their files hold.

    Raises:
        UnwritableError: something in it has no text that is the same in every process.

    """
    writer = Writer(same_bytes.left_out(), _INSTEAD)
    model = config.model_config
    parts = {
        "config": writer.write(config, "vllm_config"),
        "environment": writer.write(environment(), "environment"),
        # What the same bits of a number of 8 bits mean differs between GPUs of one kind.
        "fp8": [str(current_platform.fp8_dtype()), current_platform.is_fp8_fnuz()],
        "seed": None if config.load_config.load_format in _READ_FORMATS else model.seed,
        # It resizes images.
        "processors": transformers.__version__ if model.multimodal_config else None,
    }
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def machine() -> str | None:
    """The processor's kind, where it decides how attention lays out a block: on the CPU engine."""
    if not current_platform.is_cpu():
        return None
    capability = torch.backends.cpu.get_cpu_capability()
    has_amx = torch.cpu.get_capabilities().get("amx_tile", False)
    return f"{platform.machine()} {capability}{' AMX' if has_amx else ''}"


def _model(config: "ModelConfig") -> list[object]:
    """The content of a local model, else its name and the commit of its files."""
    content = _content(config.model, "model")
    is_named = content == config.model
    return [content, getattr(config.hf_config, "_commit_hash", None) if is_named else None]


def _content(model: str | None, name: str) -> str | None:
    try:
        return model and model_content(model)
    except OSError as error:
        raise UnwritableError(f"{name} ({error})") from None


def _drafter(config: "SpeculativeConfig") -> object:
    return None if config.draft_model_config else _content(config.model, "the drafter")


def _length(config: "ModelConfig") -> object:
    """Return the rotation that the longest length picks, or nothing."""
    own = list(_mappings(config.hf_config))
    architectures = getattr(config.hf_config, "architectures", None) or []
    if any(it in _LLAMA_4 for it in architectures):
        return config.max_model_len > _LLAMA_4_IS_LONG
    if any(it in _ANY_LENGTH_COUNTS for it in architectures):
        return config.max_model_len
    kinds = set(_ropes(own)) - {*_ROPES_OF_ANY_LENGTH}
    if not kinds:
        return None
    limits = sorted({it for it in map(_limit, own) if it})
    if kinds <= {*_TWO_ROPES} and limits:
        return [config.max_model_len > limit for limit in limits]
    return config.max_model_len


def _limit(own: Mapping[str, Any]) -> int:
    limit = own.get("original_max_position_embeddings")
    return limit if isinstance(limit, int) else 0


def _ropes(own: list[Mapping[str, Any]]) -> Iterator[str]:
    for mapping in own:
        if "dual_chunk_attention_config" in mapping:
            yield "dual_chunk"
        if isinstance(mapping.get("rope_type"), str):
            yield mapping["rope_type"]
        for name in ("rope_scaling", "rope_parameters"):
            inner = mapping.get(name)
            if isinstance(inner, Mapping) and isinstance(inner.get("type"), str):
                yield inner["type"]


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    """All mappings of a configuration, itself included."""
    if isinstance(value, transformers.PretrainedConfig):
        value = vars(value)
    if isinstance(value, Mapping):
        yield value
        value = list(value.values())
    if isinstance(value, list | tuple):
        for it in value:
            yield from _mappings(it)


_INSTEAD: Final[Mapping[tuple[str, str], Callable[[Any], object]]] = {
    ("ModelConfig", "model"): _model,
    ("ModelConfig", "hf_config_path"): lambda it: _content(it.hf_config_path, "hf_config_path"),
    ("ModelConfig", "max_model_len"): _length,
    ("SpeculativeConfig", "model"): _drafter,
}
