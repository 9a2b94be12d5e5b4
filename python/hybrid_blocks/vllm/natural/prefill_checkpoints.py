"""Which engines leave prefill checkpoints, and why the others end chunks of prompts there."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from vllm.config import VllmConfig
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.kv_cache_interface import KVCacheSpec

from hybrid_blocks.model.layer import RUNNING, StateFormat
from hybrid_blocks.reasons import first, sentence
from hybrid_blocks.vllm.level import Level, cuts_forwards, forward_grant, worker_grant
from hybrid_blocks.vllm.log import logger
from hybrid_blocks.vllm.worker import runner_hooks, state_layers

ANY_POSITION: Final = 1
"""Multiple of tokens after which layers that run in pieces can leave a state."""

_LEAVES_STATES: Final = 1
"""``block_stride_alignment`` of state layers that run in pieces.

To vLLM it says what None says. Workers know the layers and the engine core their specs, so this is
how the core learns of them.
"""

vllm_get_kv_cache_spec = MambaBase.get_kv_cache_spec


def get_kv_cache_spec(self: Any, vllm_config: VllmConfig) -> KVCacheSpec | None:
    """Return a state layer's spec, marked if its forward can leave states between two tokens."""
    spec = vllm_get_kv_cache_spec(self, vllm_config)
    if spec is None:
        return None
    if why := _reason_of_layer(self, vllm_config):
        logger.info_once("hybrid_blocks: chunks of prompts end at checkpoints: %s", why)
        return spec
    return replace(spec, block_stride_alignment=_LEAVES_STATES)


def _reason_of_layer(layer: Any, vllm_config: VllmConfig) -> str | None:
    """Return why a layer does not run in pieces; let it run so if nothing stands in the way."""
    row, name = state_layers.row_of(layer), type(layer).__name__
    unfit = {
        "whole_forward": not cuts_forwards(),
        "state_layer": row is None,
        "drafted_states": row and not row.drafts and vllm_config.speculative_config is not None,
        "draft_states": layer.is_draft_layer,
        "adapted_states": row and row.projects and vllm_config.lora_config is not None,
    }
    if why := first(unfit, layer=name):
        return why
    if why := worker_grant(Level.NATURAL).reason or forward_grant().reason:
        return sentence("vllms_forward", why=why)
    runner_hooks.install()
    if row is not None:
        state_layers.install(layer, row)
    return None


def alignment(
    vllm_config: VllmConfig, specs: Mapping[str, KVCacheSpec], checkpoint_format: StateFormat
) -> int | None:
    """Return the multiple of tokens after which a forward can leave states, None if it cannot.

    The engine core asks, once. The log says why chunks of prompts end at checkpoints instead.
    """
    states = {name: spec for name, spec in specs.items() if hasattr(spec, "mamba_type")}
    if not states:
        return None
    if why := _reason(vllm_config, states, checkpoint_format):
        logger.info("hybrid_blocks: chunks of prompts end at checkpoints: %s", why)
        return None
    logger.info("hybrid_blocks: forwards leave checkpoints of prompts after any token")
    return ANY_POSITION


def _reason(
    config: VllmConfig, states: Mapping[str, KVCacheSpec], checkpoint_format: StateFormat
) -> str | None:
    options = {
        "whole_forward": not cuts_forwards(),
        "smaller_checkpoints": checkpoint_format != RUNNING,
        "dbo": config.parallel_config.use_ubatching,
        "trimmed_drafts": getattr(config.speculative_config, "enable_adaptive_verification", False),
    }
    if why := first(options, format=checkpoint_format):
        return why
    unmarked = (
        name for name, spec in states.items() if spec.block_stride_alignment != _LEAVES_STATES
    )
    name = next(unmarked, None)
    return None if name is None else sentence("unmarked_states", layer=name)
