"""What SGLang logs when it starts: two pools of a fixed split, states and attention."""

import math
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.pasted.log_figures import Figure
from hybrid_blocks.pasted.log_lines import Logged
from hybrid_blocks.pasted.model import find_model
from hybrid_blocks.plan.deployment import Deployment, SglangOptions
from hybrid_blocks.plan.sglang import SglangPlan, plan_sglang, plan_unified
from hybrid_blocks.plan.sglang.costs import costs
from hybrid_blocks.plan.sglang.plan import WINDOW_RATIO, draft_states
from hybrid_blocks.plan.sglang.strategy import STRATEGIES

_REQUESTS_A_CONTEXT: Final = 512
_FEWEST_REQUESTS: Final = 2048
_MOST_REQUESTS: Final = 4096
"""SGLang's own cap on running requests, where none is given."""

_STATES: Final = ("conv", "ssm", "draft_conv", "draft_ssm")
_GIB: Final = 2**30
_RANK: Final = re.compile(r"\b[A-Z]P\d+\b")
_TOKENS: Final = re.compile(r"#tokens: (\d+)")
_SIZE: Final = re.compile(r"size: ([\d.]+) GB")


class _Pool(NamedTuple):
    """A pool of attention on one rank: a drafter and windows have pools of their own."""

    rank: tuple[str, ...]
    tokens: int
    gib: float


def is_logged(log: Logged) -> bool:
    """Return whether the lines are SGLang's."""
    facts = ("sglang_model", "slots", "sglang_pool", "at_once")
    return any(log.first(fact) is not None for fact in facts)


def memory_of(log: Logged) -> int:
    """Bytes of all pools, of the rank that has least of each.

    Raises:
        PlanError: the log does not say.

    """
    if (unified := log.last("unified")) is not None:
        return int(unified)
    sizes = [min(log.numbers(pool)) for pool in _STATES if log.first(pool) is not None]
    by_rank: dict[tuple[str, ...], float] = {}
    for pool in _pools(log):
        by_rank[pool.rank] = by_rank.get(pool.rank, 0.0) + pool.gib
    if by_rank:
        sizes.append(min(by_rank.values()))
    if not sizes:
        raise PlanError(
            "the log does not say how much memory the caches have: paste SGLang's lines 'Mamba "
            "Cache is allocated' and 'KV Cache is allocated', or give --memory"
        )
    return int(sum(sizes) * _GIB)


def _pools(log: Logged) -> list[_Pool]:
    return [
        _Pool(
            rank=tuple(_RANK.findall(text.partition("]")[0])),
            tokens=int(_TOKENS.findall(text)[0]),
            gib=sum(map(float, _SIZE.findall(text))),
        )
        for text in log.facts.get("sglang_pool", ())
    ]


def _tokens(log: Logged) -> int | None:
    """Tokens of the model's own pool, which is the first of each rank."""
    if full := log.numbers("full_tokens"):
        return int(min(full))
    firsts: dict[tuple[str, ...], int] = {}
    for pool in _pools(log):
        firsts.setdefault(pool.rank, pool.tokens)
    return min(firsts.values(), default=None)


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
    drafts = _drafts(options)
    context = log.last("context")
    return model, Deployment(
        tp=_number(options, "tp_size") or 1,
        pp=_number(options, "pp_size") or 1,
        kv_cache_dtype=kv_dtype,
        mamba_ssm_dtype=_option(options, "mamba_ssm_dtype") or "auto",
        max_model_len=int(context) if context else _number(options, "context_length"),
        max_num_seqs=_number(options, "max_running_requests") or 1024,
        num_speculative_tokens=drafts if model.draft_layers else 0,
        mamba_cache_mode="none" if _option(options, "disable_radix_cache") == "True" else "align",
        sglang=_own_options(options),
    )


def _own_options(options: str) -> SglangOptions:
    """Return what the log says of SGLang's own options."""
    named = _option(options, "mamba_radix_cache_strategy")
    ratio = _option(options, "mamba_full_memory_ratio")
    strategy = next((known for known in STRATEGIES if known == named), None)
    try:
        return SglangOptions(strategy=strategy, ratio=None if ratio is None else float(ratio))
    except ValueError:
        return SglangOptions(strategy=strategy)


def figures_of(log: Logged, model: Model, deployment: Deployment) -> Iterator[Figure]:
    """Figures that SGLang logs of its pools, next to those of its split of their bytes."""
    plan, tokens = _planned(log, model, deployment), _tokens(log)
    unified = None
    if plan is not None and log.last("unified") is not None:
        unified = plan_unified(plan, deployment)
    for name, value, planned in (
        ("state slots", log.last("slots"), plan and plan.state_slots),
        ("state slots a request", log.last("slots_each"), plan and plan.slots_per_request),
        ("tokens of attention", tokens, plan and plan.tokens),
        ("tokens of windows", log.last("window_tokens"), plan and plan.window_tokens),
        ("bytes of the buffer", log.last("unified"), unified and unified.total_bytes),
        ("requests at once", log.last("at_once"), plan and plan.max_running),
    ):
        if value is not None:
            yield Figure(
                name=name,
                logged=f"{int(value):,}",
                planned=None if planned is None else f"{planned:,}",
            )


def _planned(log: Logged, model: Model, deployment: Deployment) -> SglangPlan | None:
    """Split the bytes of the logged pools again; None where they, or the split, are not known."""
    slots, tokens = log.last("slots"), _tokens(log)
    options = log.first("sglang_options") or ""
    if tokens is None or (slots is None and model.is_hybrid):
        return None
    # A drafter of its own has states to verify too.
    deployment = msgspec.structs.replace(deployment, num_speculative_tokens=_drafts(options))
    if _number(options, "max_running_requests") is None:
        most = int(tokens / deployment.length(model) * _REQUESTS_A_CONTEXT)
        most = max(min(most, _MOST_REQUESTS), _FEWEST_REQUESTS)
        deployment = msgspec.structs.replace(deployment, max_num_seqs=most)
    try:
        each = costs(model, deployment)
        states = 0
        if slots is not None:
            running = int(log.last("at_once") or 0)
            drafts = draft_states(deployment) * (running + 1)
            states = (int(slots) + 1 + drafts) * each.state_bytes
        token_bytes = each.token_bytes + WINDOW_RATIO * each.window_bytes
        held = states + math.ceil(tokens * token_bytes)
        return plan_sglang(model, held, deployment)
    except PlanError:
        return None


def _drafts(options: str) -> int:
    """Tokens that a drafter proposes; SGLang counts the one that it verifies too."""
    verified = _number(options, "speculative_num_draft_tokens")
    return verified - 1 if verified else _number(options, "speculative_num_steps") or 0


def _option(options: str, name: str) -> str | None:
    match = re.search(rf"\b{name}'?(?:=|: )'?([\w.]+)", options)
    return match[1] if match and match[1] != "None" else None


def _number(options: str, name: str) -> int | None:
    text = _option(options, name)
    return int(text) if text is not None and text.isdecimal() else None
