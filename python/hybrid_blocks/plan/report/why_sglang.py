"""The formula of each of SGLang's figures, with its numbers."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.plan.deployment import Deployment
from hybrid_blocks.plan.sglang import SglangPlan, best_ratio, plan_sglang, plan_unified
from hybrid_blocks.plan.sglang.plan import draft_states

REQUESTS: Final = "requests of "
BEST: Final = "best ratio for "
_AT_BEST: Final = "requests at it for "
_IDLE: Final = "token pool idle for "
_UNIFIED: Final = "in unified memory for "
BYTES: Final = (_IDLE,)
AT_LENGTH: Final = (BEST, _AT_BEST, _IDLE, _UNIFIED)
"""Figures that only SGLang has, of one length each."""

_Case = tuple[SglangPlan, Deployment, int]


def figure(
    name: str, model: Model, memory_bytes: int, deployment: Deployment, length: int
) -> float | None:
    """Return SGLang's figure of a name, None where it has none."""
    if (case := _case(name, model, memory_bytes, deployment, length)) is None:
        return None
    return _FIGURES[_key(name)][0](*case)


def formula(
    name: str, model: Model, memory_bytes: int, deployment: Deployment, length: int
) -> str | None:
    """Return the formula behind `figure`, None where there is none."""
    case = _case(name, model, memory_bytes, deployment, length)
    if case is None or _FIGURES[_key(name)][0](*case) is None:
        return None
    return _FIGURES[_key(name)][1](*case)


def _key(name: str) -> str:
    return next((one for one in (REQUESTS, *AT_LENGTH) if name.startswith(one)), name)


def _case(
    name: str, model: Model, memory_bytes: int, deployment: Deployment, length: int
) -> _Case | None:
    if _key(name) not in _FIGURES:
        return None
    try:
        return plan_sglang(model, memory_bytes, deployment), deployment, length
    except PlanError:
        return None


def _slots(plan: SglangPlan, deployment: Deployment, _length: int) -> str:
    state, each = plan.costs.state_bytes, plan.slots_per_request
    if plan.ratio is None:
        return f"one for each of max_num_seqs {plan.max_num_seqs:,}, without a prefix cache"
    drafts = draft_states(deployment)
    share = f"{plan.memory_bytes:,} x {plan.ratio:g} / {1 + plan.ratio:g}"
    if not drafts:
        return (
            f"floor(({share} - {state:,} of a slot of padding) / {state:,} bytes of a state) = "
            f"{plan.state_slots:,}"
        )
    return (
        f"floor(({share} - {state:,} x {1 + drafts}) / ({state:,} bytes of a state x "
        f"(1 + {drafts} to verify a draft / {each}))) = {plan.state_slots:,}"
    )


def _each(plan: SglangPlan, _deployment: Deployment, _length: int) -> str:
    return f"{plan.strategy} keeps {plan.slots_per_request} for each running request"


def _pool(plan: SglangPlan, _deployment: Deployment, _length: int) -> str:
    held = plan.tokens * plan.costs.token_bytes
    return (
        f"floor(bytes that states leave / {plan.costs.token_bytes:,} bytes of a token) = "
        f"{plan.tokens:,}, {held:,} of {plan.memory_bytes:,} bytes"
    )


def _cap(plan: SglangPlan, _deployment: Deployment, _length: int) -> str:
    states = ""
    if plan.state_slots is not None:
        states = f"floor({plan.state_slots:,} state slots / {plan.slots_per_request}), "
    return (
        f"min({states}{plan.tokens:,} tokens / 2, max_num_seqs {plan.max_num_seqs:,}) = "
        f"{plan.max_running:,}"
    )


def _requests(plan: SglangPlan, _deployment: Deployment, length: int) -> str:
    windows = ""
    if plan.window_tokens is not None:
        windows = f", {plan.window_tokens:,} tokens of windows / {plan.window_held(length):,}"
    return (
        f"min({plan.max_running:,} that may run, {plan.tokens:,} tokens / {length:,}{windows}) = "
        f"{plan.running(length):.2f}"
    )


def _tokens(plan: SglangPlan, deployment: Deployment, length: int) -> str:
    running = plan.running(length)
    return (
        f"int({running:.6f} requests x {length:,}) = {int(running * length):,}; "
        f"{_requests(plan, deployment, length)}"
    )


def _longest(plan: SglangPlan, _deployment: Deployment, length: int) -> str:
    return f"min({plan.tokens:,} tokens of the pool, {length:,} that an engine takes)"


def _ratio(plan: SglangPlan, deployment: Deployment, length: int) -> str:
    best = best_ratio(plan, deployment, length)
    return (
        f"the least with state slots for {best.running(length):.2f} requests of {length:,} tokens: "
        f"{best.state_slots:,} slots, {best.tokens:,} tokens; the default of {plan.ratio:g} runs "
        f"{plan.running(length):.2f}"
    )


def _best(plan: SglangPlan, deployment: Deployment, length: int) -> float | None:
    return None if plan.ratio is None else best_ratio(plan, deployment, length).ratio


def _at_best(plan: SglangPlan, deployment: Deployment, length: int) -> str:
    best = best_ratio(plan, deployment, length)
    return f"at the ratio {best.ratio:g}: {_requests(best, deployment, length)}"


def _best_running(plan: SglangPlan, deployment: Deployment, length: int) -> float | None:
    return None if plan.ratio is None else best_ratio(plan, deployment, length).running(length)


def _idle(plan: SglangPlan, _deployment: Deployment, length: int) -> str:
    return (
        f"({plan.tokens:,} tokens - floor({plan.running(length):.2f}) requests x {length:,}) x "
        f"{plan.costs.token_bytes:,} bytes of a token = {plan.idle_bytes(length):,}"
    )


def _windows(plan: SglangPlan, _deployment: Deployment, _length: int) -> str:
    return f"floor({plan.tokens:,} tokens x 0.8) = {plan.window_tokens:,}"


def _unified(plan: SglangPlan, deployment: Deployment, length: int) -> str:
    unified = plan_unified(plan, deployment)
    each = plan.slots_per_request or plan.window_held(length)
    what = "states" if plan.slots_per_request else "tokens of windows"
    return (
        f"min({plan.max_running:,} that may run, {unified.tokens_beside(0):,} tokens of one buffer "
        f"/ ({length:,} + {each:,} {what} x {unified.other_bytes:,} / {unified.token_bytes:,} "
        f"bytes)) = {unified.running(length):.2f}"
    )


def _unified_running(plan: SglangPlan, deployment: Deployment, length: int) -> float | None:
    try:
        return plan_unified(plan, deployment).running(length)
    except PlanError:
        return None


_FIGURES: Final[
    Mapping[
        str,
        tuple[
            Callable[[SglangPlan, Deployment, int], float | None],
            Callable[[SglangPlan, Deployment, int], str],
        ],
    ]
] = MappingProxyType(
    {
        "state slots": (lambda plan, _, __: plan.state_slots, _slots),
        "slots a request": (lambda plan, _, __: plan.slots_per_request, _each),
        "tokens of the pool": (lambda plan, _, __: plan.tokens, _pool),
        "most running requests": (lambda plan, _, __: plan.max_running, _cap),
        "tokens": (lambda plan, _, length: int(plan.running(length) * length), _tokens),
        "longest request": (lambda plan, _, length: min(plan.tokens, length), _longest),
        REQUESTS: (lambda plan, _, length: plan.running(length), _requests),
        BEST: (_best, _ratio),
        _AT_BEST: (_best_running, _at_best),
        _IDLE: (lambda plan, _, length: plan.idle_bytes(length), _idle),
        _UNIFIED: (_unified_running, _unified),
        "tokens of the windows' pool": (lambda plan, _, __: plan.window_tokens, _windows),
    }
)

NAMES: Final = (
    *("slots a request", "tokens of the pool", "tokens of the windows' pool"),
    "most running requests",
)
"""Figures that only SGLang has, whatever the length."""
