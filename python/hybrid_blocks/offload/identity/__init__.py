"""The facts that decide the bytes of a model's cache, beside the layout of the cache."""

import hashlib
import json
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import transformers
from vllm.platforms import current_platform

from hybrid_blocks.offload.identity import model_files, same_bytes
from hybrid_blocks.offload.identity.canonical import Unknown, UnwritableError, Writer

if TYPE_CHECKING:
    from vllm.config import LoadConfig, ModelConfig, SpeculativeConfig, VllmConfig

# Rotations that stay the same however long requests may be.
_ROPES_OF_ANY_LENGTH: Final = (
    *("default", "linear", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "mrope"),
    *("bailing_mrope", "proportional", "mllama4", "openpangu"),
)
# Rotations for short and for long requests; the longest length picks one of both.
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
# Formats whose weights are read from the model's files, or from those that their options name.
_READ_FORMATS: Final = (
    *("auto", "hf", "safetensors", "pt", "npcache", "mistral", "fastsafetensors"),
    *("instanttensor", "runai_streamer", "runai_streamer_sharded", "sharded_state", "tensorizer"),
    *("gguf", "bitsandbytes"),
)
# Fields of a configuration that name further models, as Ultravox has them.
_TOWERS: Final = ("audio_model_id", "text_model_id")


@dataclass(frozen=True)
class Identity:
    """``digest`` is SHA-256 of what an engine computes with.

    ``unknown`` names what counts by its name alone, as no engine can know its content.
    """

    digest: str
    unknown: tuple[str, ...] = ()


def identity_of(config: "VllmConfig") -> Identity:
    """Return the identity of an engine, the same in every process and on every machine.

    That is all of its configuration but the fields of ``same_bytes``: models with all overrides,
    quantization and options, and what their files hold. Call it once the weights are loaded, as a
    hub's files are there only then.

    Raises:
        UnwritableError: something in it has no text that is the same in every process.
    """
    drafts = config.speculative_config and config.speculative_config.draft_load_config
    loads = [config.load_config, *([drafts] if drafts else [])]
    caches = sorted({it.download_dir for it in loads} | {None}, key=str)
    writer = Writer(same_bytes.left_out(), _instead(caches))
    model = config.model_config
    is_read = all(it.load_format in _READ_FORMATS for it in loads)
    has_processors = model.multimodal_config is not None
    parts = {
        "config": config,
        "environment": same_bytes.environment(),
        # GPUs of one kind differ in the value that the bits of an 8-bit float stand for.
        "fp8": [str(current_platform.fp8_dtype()), current_platform.is_fp8_fnuz()],
        "seed": None if is_read else model.seed,
        # Transformers resizes images, and computes models that vLLM has no code of.
        "transformers": transformers.__version__
        if has_processors or model.using_transformers_backend()
        else None,
        "code": _code(model),
        "plugins": model_files.plugins(),
        "towers": _towers(model, caches),
    }
    text = json.dumps({it: writer.write(part, it) for it, part in parts.items()}, sort_keys=True)
    return Identity(hashlib.sha256(text.encode()).hexdigest(), tuple(writer.unknown))


def machine() -> str | None:
    """The processor's kind, where it decides how attention lays out a block: on the CPU engine."""
    if not current_platform.is_cpu():
        return None
    capability = torch.backends.cpu.get_cpu_capability()
    has_amx = torch.cpu.get_capabilities().get("amx_tile", False)
    return f"{platform.machine()} {capability}{' AMX' if has_amx else ''}"


def _instead(caches: list[str | None]) -> Mapping[tuple[str, str], Callable[[Any], object]]:
    """Return the rules for fields that are not written as they are."""

    def model(config: "ModelConfig") -> object:
        return _content(config.model, config.revision, caches)

    def weights(config: "ModelConfig") -> object:
        # vLLM binds the downloads of the model to a commit, not those of other weights.
        return config.model_weights and _content(config.model_weights, None, caches)

    def tokenizer(config: "ModelConfig") -> object:
        """Tokens come before the keys, but processors and n-grams of a model read it too."""
        has_engrams = getattr(config.hf_text_config, "engram_layer_ids", None)
        if config.tokenizer == config.model or not (config.multimodal_config or has_engrams):
            return None
        return _content(config.tokenizer, config.tokenizer_revision, caches)

    return {
        ("ModelConfig", "model"): model,
        ("ModelConfig", "model_weights"): weights,
        ("ModelConfig", "tokenizer"): tokenizer,
        ("ModelConfig", "max_model_len"): _length,
        ("SpeculativeConfig", "model"): _drafter,
        ("LoadConfig", "load_format"): _load_format,
        ("LoadConfig", "model_loader_extra_config"): _loader_options,
    }


def _content(name: str, revision: str | None, caches: list[str | None]) -> object:
    try:
        return model_files.content(name, revision, caches)
    except OSError as error:
        raise UnwritableError(f"{name} ({error})") from None


def _drafter(config: "SpeculativeConfig") -> str | None:
    """Return a way to draft without weights; a drafter's model has a configuration of its own."""
    return None if config.draft_model_config else config.model


def _load_format(config: "LoadConfig") -> object:
    name = config.load_format
    return name if name in (*_READ_FORMATS, "dummy") else Unknown(f"weights by {name}")


def _loader_options(config: "LoadConfig") -> object:
    options = config.model_loader_extra_config
    if not isinstance(options, Mapping):
        return options
    # Joined to the model's folder, an absolute pattern of shards leads out of it.
    if Path(options.get("pattern") or "").is_absolute():
        return Unknown(options["pattern"])
    own = {**(options.get("tensorizer_config") or {}), **options}
    if not own.get("tensorizer_uri") and not own.get("tensorizer_dir"):
        return options
    kept = {it: own[it] for it in own if not it.startswith(("tensorizer_", "s3_"))}
    try:
        return [kept, model_files.tensors(own)]
    except OSError as error:
        raise UnwritableError(f"model_loader_extra_config ({error})") from None


def _code(config: "ModelConfig") -> list[Unknown]:
    try:
        return list(model_files.code(config))
    except (OSError, ValueError) as error:
        raise UnwritableError(f"the code of {config.model} ({error})") from None


def _towers(config: "ModelConfig", caches: list[str | None]) -> list[object]:
    """Return the content of further models that a model loads the weights of, at no commit."""
    names = [getattr(config.hf_config, it, None) for it in _TOWERS]
    return [_content(it, None, caches) for it in names if isinstance(it, str)]


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
