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
    model, notes = find_model(name)
    options = log.first("sglang_options") or ""
    kv_dtype = _option(options, "kv_cache_dtype") or "auto"
    steps = _number(options, "speculative_num_steps")
    context = log.last("context")
    return msgspec.structs.replace(model, notes=(*model.notes, *notes)), Deployment(
        tp=_number(options, "tp_size") or 1,
        pp=_number(options, "pp_size") or 1,
        kv_cache_dtype=kv_dtype,
        mamba_ssm_dtype=_option(options, "mamba_ssm_dtype") or "auto",
        max_model_len=int(context) if context else _number(options, "context_length"),
        max_num_seqs=_number(options, "max_running_requests") or 1024,
        num_speculative_tokens=steps if steps and model.draft_layers else 0,
    )


def figures_of(log: Logged) -> Iterator[Figure]:
    """What SGLang logs of its pools."""
    for name, fact in (
        ("state slots", "slots"),
        ("state slots a request", "slots_each"),
        ("tokens of attention", "sglang_tokens"),
        ("requests at once", "at_once"),
    ):
        value = log.last(fact)
        if value is not None:
            yield Figure(name=name, logged=f"{int(value):,}", planned=None)


def _option(options: str, name: str) -> str | None:
    match = re.search(rf"\b{name}='?([\w.]+)", options)
    return match[1] if match and match[1] != "None" else None


def _number(options: str, name: str) -> int | None:
    text = _option(options, name)
    return int(text) if text is not None and text.isdecimal() else None
