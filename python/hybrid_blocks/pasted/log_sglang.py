"""What SGLang logs when it starts: two pools of a fixed split, states and attention."""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.pasted.log_figures import Figure
from hybrid_blocks.pasted.log_lines import Logged
from hybrid_blocks.pasted.model import find_model
from hybrid_blocks.plan.deployment import Deployment
from hybrid_blocks.plan.sglang import SglangPlan, plan_sglang
from hybrid_blocks.plan.sglang.costs import costs
from hybrid_blocks.plan.sglang.plan import RATIO
from hybrid_blocks.plan.sglang.strategy import SLOTS

_POOLS: Final = ("conv", "ssm", "draft_conv", "draft_ssm", "keys", "values")
_GIB: Final = 2**30


def is_logged(log: Logged) -> bool:
    """Return whether the lines are SGLang's."""
    facts = ("sglang_model", "slots", "sglang_tokens", "at_once")
    return any(log.first(fact) is not None for fact in facts)


def memory_of(log: Logged) -> int:
    """Bytes of all pools, of the rank that has least of each.

    Raises:
        PlanError: the log does not say.

    """
    sizes = [min(log.numbers(pool)) for pool in _POOLS if log.first(pool) is not None]
    if not sizes:
        raise PlanError(
            "the log does not say how much memory the caches have: paste SGLang's lines 'Mamba "
            "Cache is allocated' and 'KV Cache is allocated', or give --memory"
        )
    return int(sum(sizes) * _GIB)


def deployment_of(log: Logged, source: str | None) -> tuple[Model, Deployment]:
    """Return the model and the deployment of vLLM that takes SGLang's place.

    Raises:
        PlanError: the log names no model that is known.

    """
    name = source or log.first("sglang_model")
    if name is None:
        raise PlanError("the log does not name its model: put the model before --log")
    model = find_model(name)
    options = log.first("sglang_options") or ""
    kv_dtype = _option(options, "kv_cache_dtype") or "auto"
    steps = _number(options, "speculative_num_steps")
    context = log.last("context")
    return model, Deployment(
        tp=_number(options, "tp_size") or 1,
        pp=_number(options, "pp_size") or 1,
        kv_cache_dtype=kv_dtype,
        mamba_ssm_dtype=_option(options, "mamba_ssm_dtype") or "auto",
        max_model_len=int(context) if context else _number(options, "context_length"),
        max_num_seqs=_number(options, "max_running_requests") or 1024,
        num_speculative_tokens=steps if steps and model.draft_layers else 0,
    )


def figures_of(log: Logged, model: Model, deployment: Deployment) -> Iterator[Figure]:
    """Figures that SGLang logs of its pools, next to those of its split of their bytes."""
    plan = _planned(log, model, deployment)
    for name, fact, planned in (
        ("state slots", "slots", plan and plan.state_slots),
        ("state slots a request", "slots_each", plan and plan.slots_per_request),
        ("tokens of attention", "sglang_tokens", plan and plan.tokens),
        ("requests at once", "at_once", plan and plan.max_running),
    ):
        value = log.last(fact)
        if value is not None:
            yield Figure(
                name=name,
                logged=f"{int(value):,}",
                planned=None if planned is None else f"{planned:,}",
            )


def _planned(log: Logged, model: Model, deployment: Deployment) -> SglangPlan | None:
    """Split the bytes of the logged pools again; None where they, or the split, are not known."""
    slots, tokens = log.last("slots"), log.last("sglang_tokens")
    options = log.first("sglang_options") or ""
    named = _option(options, "mamba_radix_cache_strategy")
    strategy = next((known for known in SLOTS if known == named), None)
    ratio = float(_option(options, "mamba_full_memory_ratio") or RATIO)
    if tokens is None or (slots is None and model.is_hybrid):
        return None
    if _option(options, "disable_radix_cache") == "True":
        deployment = msgspec.structs.replace(deployment, mamba_cache_mode="none")
    try:
        each = costs(model, deployment)
        states = (int(slots) + 1) * each.state_bytes if slots is not None else 0
        held = states + int(tokens) * each.token_bytes
        return plan_sglang(model, held, deployment, strategy=strategy, ratio=ratio)
    except (PlanError, ValueError):
        return None


def _option(options: str, name: str) -> str | None:
    match = re.search(rf"\b{name}='?([\w.]+)", options)
    return match[1] if match and match[1] != "None" else None


def _number(options: str, name: str) -> int | None:
    text = _option(options, name)
    return int(text) if text is not None and text.isdecimal() else None
