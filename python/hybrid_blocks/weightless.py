"""An engine without weights: the configuration of a model, and a scheduler for it."""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from vllm.config import ModelConfig, VllmConfig
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.structured_output import StructuredOutputManager

DECODER: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "vocab_size": 128_256,
}
"""A ``config.json``. Any decoder will do: a scheduler asks for its name and its length."""

Made = TypeVar("Made")


@contextmanager
def model_config(fields: Mapping[str, Any], *, max_model_len: int, dtype: Any) -> Iterator[Any]:
    """Give vLLM's configuration of a model; what else reads the model's folder must do so here."""
    fields = {**DECODER, "max_position_embeddings": max_model_len, **fields}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(fields))
        yield ModelConfig(
            model=folder, dtype=dtype, skip_tokenizer_init=True, max_model_len=max_model_len
        )


def make_scheduler(
    scheduler_cls: Callable[..., Made],
    config: VllmConfig,
    kv_cache_config: KVCacheConfig,
    *,
    block_size: int,
    hash_block_size: int,
    log_stats: bool = True,
) -> Made:
    """Make a scheduler as an engine core does; digests begin as the caller set it up."""
    register_all_kvcache_specs(config)  # type: ignore[no-untyped-call]
    return scheduler_cls(
        vllm_config=config,
        kv_cache_config=kv_cache_config,
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
        hash_block_size=hash_block_size,
        log_stats=log_stats,
    )
