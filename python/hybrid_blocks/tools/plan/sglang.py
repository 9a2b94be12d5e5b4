"""SGLang's plan at its defaults: a pool of states and a pool of tokens, cut once by a ratio.

Follows ``_handle_max_mamba_cache``, ``resolve_max_num_reqs`` and the pool configurators of
`RELEASE`.
"""

from math import prod
from typing import Final

import msgspec

from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.model import Model, PlanError, Rank, formats
from hybrid_blocks.model.layer import (
    ChunkedAttention,
    FullAttention,
    LatentAttention,
    SlidingWindow,
    State,
)
from hybrid_blocks.units import human

RELEASE: Final = "0.5.23"

RATIO: Final = 0.9
"""Default of ``--mamba-full-memory-ratio``: bytes of states for each byte of tokens."""

WINDOW_RATIO: Final = 0.8
"""Default of ``--swa-full-tokens-ratio``: tokens of the windows' pool for each of the other."""

_SLOTS: Final = {"extra_buffer": 5, "no_buffer": 3, "off": 1}
"""State slots that a running request takes of the pool, by ``--mamba-radix-cache-strategy``.

``off`` stands for ``--disable-radix-cache``.
"""

_FREED_EACH: Final = 128
"""Tokens after which SGLang frees what lies behind a window."""

_GIB: Final = 2**30

_SPARE: Final = frozenset(
    {
        *("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next"),
        *("falcon_h1", "nemotron_h", "granitemoehybrid"),
        *("kimi_linear", "kimi_k3", "bailing_hybrid", "bailing_moe_linear"),
    }
)
"""Models with states that take spare slots, as SGLang's scheduler wants by default."""

_WINDOWS_APART: Final = frozenset({"gpt_oss", "gemma4_text", "llama4_text"})
"""Models whose windows, or chunks, have a pool of their own."""

SERVED: Final = (
    _SPARE
    | _WINDOWS_APART
    | {
        *("lfm2", "lfm2_moe"),
        *("granite", "gemma3_text", "mistral", "phi3", "deepseek_v3"),
        *("llama", "qwen2", "qwen3", "qwen3_moe"),
    }
)
"""Types of models whose pools were compared with SGLang's own arithmetic."""

_FORMATS: Final = frozenset({"bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"})
_TOKENS: Final = (FullAttention, LatentAttention, SlidingWindow, ChunkedAttention)


class SglangPlan(msgspec.Struct, frozen=True, kw_only=True):
    """SGLang's pools in the free memory of each GPU.

    ``strategy`` and the two ``slots`` are None for models without states. ``window_tokens`` and
    ``window`` are None where windows have no pool of their own.
    """

    strategy: str | None
    state_bytes: int
    state_slots: int | None
    slots_per_request: int | None
    token_bytes: int
    tokens: int
    window: int | None
    window_tokens: int | None
    max_num_seqs: int

    @property
    def state_cap(self) -> int | None:
        """Requests for which there are state slots."""
        if self.state_slots is None or self.slots_per_request is None:
            return None
        return self.state_slots // self.slots_per_request

    @property
    def max_running(self) -> int:
        """SGLang's cap on running requests, however short they are."""
        cap = min(self.max_num_seqs, self.tokens // 2)
        return cap if self.state_cap is None else min(cap, self.state_cap)

    def concurrency(self, length: int) -> float:
        """Requests of ``length`` tokens that the pools hold."""
        held = self.tokens / length
        if self.window_tokens is not None:
            held = min(held, self.window_tokens / self.window_held(length))
        return held if self.state_cap is None else min(held, self.state_cap)

    def running(self, length: int) -> float:
        """Return `concurrency`, within the cap."""
        return min(self.concurrency(length), self.max_running)

    def window_held(self, length: int) -> int:
        """Tokens of the windows' pool that a request of ``length`` tokens holds."""
        return min(length, (self.window or length) + _FREED_EACH + 2)


class _Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes over all layers of a rank; ``window`` is None where windows have no pool."""

    state: int
    token: int
    window_token: int
    window: int | None


def plan_sglang(model: Model, memory_bytes: int, deployment: Deployment) -> SglangPlan:
    """Split memory as SGLang does at its defaults.

    Raises:
        PlanError: the model, or an option, is not planned for SGLang, or the memory is too small.
    """
    costs, strategy = _costs(model, deployment), None
    if not costs.token and not costs.window_token:
        raise PlanError(f"{model.name} has no attention, for which SGLang keeps tokens")
    if costs.state:
        strategy = "extra_buffer" if model.model_type in _SPARE else "no_buffer"
        strategy = "off" if deployment.mamba_cache_mode == "none" else strategy
    rest, slots = memory_bytes / _GIB, None
    if strategy is not None:
        slots, rest = _state_pool(costs.state, rest, deployment, strategy)
    tokens = int(int(rest * _GIB) // (costs.token + WINDOW_RATIO * costs.window_token))
    if tokens < 1 or (slots is not None and slots < 1):
        raise PlanError(f"{human(memory_bytes)} are too small for SGLang's pools")
    return SglangPlan(
        strategy=strategy,
        state_bytes=costs.state,
        state_slots=slots,
        slots_per_request=None if strategy is None else _SLOTS[strategy],
        token_bytes=costs.token,
        tokens=tokens,
        window=costs.window,
        window_tokens=None if costs.window is None else int(tokens * WINDOW_RATIO),
        max_num_seqs=deployment.max_num_seqs,
    )


def draft_states(deployment: Deployment) -> int:
    """States that SGLang keeps besides for each running request, to verify a draft."""
    tokens = deployment.num_speculative_tokens
    return tokens + 1 if tokens else 0


def _state_pool(each: int, rest: float, deployment: Deployment, strategy: str) -> tuple[int, float]:
    """Slots of the state pool, and GiB that are left. One slot more is padding."""
    drafts, per_request = draft_states(deployment), _SLOTS[strategy]
    if strategy == "off":
        slots = running = deployment.max_num_seqs
    else:
        budget = rest * RATIO / (1 + RATIO) * _GIB
        slots = int((budget - each * (1 + drafts)) // (each * (1 + drafts / per_request)))
        running = min(deployment.max_num_seqs, slots // per_request)
    if drafts:
        rest -= each * (running + 1) * drafts / _GIB
    return slots, rest - (slots + 1) * each / _GIB


def _costs(model: Model, deployment: Deployment) -> _Costs:
    """Return what SGLang's pools count for a model."""
    _check(model, deployment)
    apart = model.model_type in _WINDOWS_APART
    rank = Rank(
        tp=deployment.tp, kv_dtype=deployment.kv_dtype(model), rotary_share=model.rotary_share
    )
    state = token = window_token = layers = 0
    window = None
    for layer in model.layers:
        cache = layer.cache
        if isinstance(cache, State):
            state += _state_bytes(cache, rank, deployment)
        elif isinstance(cache, SlidingWindow | ChunkedAttention) and apart:
            window_token += cache.token_bytes(rank)
            window = cache.window if isinstance(cache, SlidingWindow) else cache.chunk
        elif isinstance(cache, _TOKENS):
            token += cache.token_bytes(rank)
            layers += 1
    if deployment.num_speculative_tokens and layers:
        token += int(token * len(model.draft_layers) / layers)
    return _Costs(state=state, token=token, window_token=window_token, window=window)


def _state_bytes(state: State, rank: Rank, deployment: Deployment) -> int:
    """Bytes of one state: convolutions in bfloat16, the rest in float32 by default."""
    asked = deployment.mamba_ssm_dtype
    if asked == "auto":
        asked = state.ssm_dtype or "float32"
    sizes = {"conv": formats.element_bytes("bfloat16"), "recurrent": formats.element_bytes(asked)}
    return sum(prod(tensor.shape) * sizes[tensor.role] for tensor in state.tensors(rank))


def _check(model: Model, deployment: Deployment) -> None:
    if model.model_type not in SERVED or model.index is not None:
        raise PlanError(f"{model.model_type} models are not planned for SGLang")
    if len({layer.depth for layer in model.layers}) < model.num_layers and (
        model.model_type in _WINDOWS_APART
    ):
        raise PlanError("layers that share another layer's cache are not planned for SGLang")
    if deployment.pp > 1:
        raise PlanError("pipeline stages are not planned for SGLang")
    if (kv_dtype := deployment.kv_dtype(model)) not in _FORMATS:
        raise PlanError(f"--kv-cache-dtype {kv_dtype} is not planned for SGLang")
