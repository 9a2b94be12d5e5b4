"""Configurations of a small model, for the tests of identities."""

import json
from pathlib import Path
from typing import Any

from hybrid_blocks.offload.identity import identity_of
from vllm.config import CacheConfig, LoadConfig, ModelConfig, VllmConfig

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 512,
}


def write(folder: Path, **changes: Any) -> str:
    """Write the model's configuration into a folder, and return its name."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODEL | changes))
    return str(folder)


def configuration(
    folder: str,
    *,
    cache_dtype: str = "auto",
    dtype: str = "float16",
    max_model_len: int = 256,
    load: dict[str, Any] | None = None,
    **model: Any,
) -> VllmConfig:
    """Return the configuration of an engine that serves a model by its folder or its name."""
    served = ModelConfig(
        model=folder,
        dtype=dtype,  # type: ignore[arg-type]
        skip_tokenizer_init=True,
        max_model_len=max_model_len,
        **model,
    )
    cache = CacheConfig(block_size=16, cache_dtype=cache_dtype)
    return VllmConfig(model_config=served, cache_config=cache, load_config=LoadConfig(**load or {}))


def digest(folder: str, **changes: Any) -> str:
    """Return the digest of such an engine."""
    return identity_of(configuration(folder, **changes)).digest
