"""A plan, made once, and everything that it says as data: what ``--json`` writes."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from hybrid_blocks.arithmetic import round_up
from hybrid_blocks.geometry import capacity, plan_natural
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.geometry.kernel_blocks import KERNEL_BLOCK_TOKENS
from hybrid_blocks.geometry.step_time import step_time
from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.model.layer import State
from hybrid_blocks.tools.plan.natural_refusals import natural_refusals
from hybrid_blocks.tools.plan.report.advice import advise, advise_on_lengths, remark, too_long
from hybrid_blocks.tools.plan.report.figures import (
    AtLength,
    FullOf,
    GroupReport,
    PlanReport,
    natural_at,
    report_natural,
    report_vllm,
    vllm_at,
)
from hybrid_blocks.tools.plan.report.verdict import Verdict, judge
from hybrid_blocks.tools.plan.sglang import RELEASE, plan_sglang
from hybrid_blocks.tools.plan.vllm import plan_vllm
from hybrid_blocks.units import human

T = TypeVar("T")


class At(NamedTuple):
    """Figures of a memory full of requests of one length; None of a side that is not planned."""

    natural: FullOf
    vllm: FullOf | None
    sglang: AtLength | None


class Plan:
    """A model and its deployment in the memory of each GPU, planned once on every side.

    Attributes:
        model: the model that is planned.
        memory_bytes: free KV memory of each GPU.
        deployment: the options of the engine.
        limit: tokens of the longest request.
        natural: the arena of level ``natural``.
        vllm: vLLM's pool; None where vLLM cannot serve the model, and ``vllm_refusal`` says why.
        sglang: SGLang's pools; None where they are not planned, and ``sglang_refusal`` says why.
    """

    def __init__(self, model: Model, memory_bytes: int, deployment: Deployment) -> None:
        """Plan all sides.

        Raises:
            PlanError: neither geometry holds one request of the maximum length; says which length
                fits. Or no kernel takes blocks of ``--block-size``.
        """
        check_block_size(deployment)
        case = (model, memory_bytes, deployment)
        self.model, self.memory_bytes, self.deployment = case
        self.limit = deployment.length(model)
        self.natural = plan_natural(*case)
        self.vllm, self.vllm_refusal = _tried(plan_vllm, *case)
        self._check_one_fits()
        self.sglang, self.sglang_refusal = _tried(plan_sglang, *case)
        self._at: dict[int, At] = {}

    def at(self, length: int) -> At:
        """Return the figures for requests of one length."""
        if length not in self._at:
            most = self.deployment.max_num_seqs
            self._at[length] = At(
                natural_at(self.natural, length, most),
                None if self.vllm is None else vllm_at(self.vllm, length, most),
                self._sglang_at(length),
            )
        return self._at[length]

    def _sglang_at(self, length: int) -> AtLength | None:
        if self.sglang is None:
            return None
        running = self.sglang.running(length)
        return AtLength(
            length=length,
            concurrency=self.sglang.concurrency(length),
            running=running,
            tokens=int(running * length),
        )

    def _check_one_fits(self) -> None:
        geometry, vllm, limit = self.natural, self.vllm, self.limit
        fits = capacity.longest(geometry, limit)
        if max(fits, vllm.longest() if vllm else 0) >= limit:
            return
        need, length = human(capacity.needed_bytes(geometry, limit)), f"{fits:,}"
        if vllm is not None:
            need += f" at level natural and {human(vllm.needed_bytes(limit))} in vLLM's blocks"
            length += f" at level natural and {vllm.longest():,} in vLLM's blocks"
        raise PlanError(
            f"KV of one request does not fit: {limit:,} tokens of {self.model.name} need {need}, "
            f"{human(geometry.memory_bytes)} are there; max length that fits is {length}"
        )


class SglangReport(msgspec.Struct, frozen=True, kw_only=True):
    """SGLang's two pools at its defaults, in the same bytes.

    ``strategy``, ``ratio`` and what belongs to states are None for models without states.
    ``lengths`` starts with the maximum length; ``trace`` is for requests of a trace's mean length.
    """

    release: str
    strategy: str | None
    state_bytes: int
    state_slots: int | None
    slots_per_request: int | None
    tokens: int
    window_tokens: int | None
    max_running: int
    lengths: tuple[AtLength, ...]
    trace: AtLength | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A model, a deployment, and both plans for the same bytes.

    ``vllm`` is None where vLLM cannot serve the model at all; a warning says why. ``sglang`` is
    None where it is not planned, and ``sglang_refusal`` says why. ``verdict`` compares both plans.
    ``kv_cache_dtype`` is what the option, the checkpoint or the model names.
    """

    model: str
    model_type: str
    verified: str
    notes: tuple[str, ...]
    layers: dict[str, int]
    deployment: Deployment
    kv_cache_dtype: str
    memory_bytes: int
    max_model_len: int
    vllm: PlanReport | None
    natural: PlanReport
    groups: tuple[GroupReport, ...]
    warnings: tuple[str, ...]
    sglang: SglangReport | None
    sglang_refusal: str | None
    verdict: Verdict


def make_report(plan: Plan, lengths: Sequence[int] = (), trace: Sequence[int] = ()) -> Report:
    """Say what a plan holds.

    ``lengths`` are request lengths of interest besides the maximum, ``trace`` the lengths of a
    workload's requests.
    """
    model, deployment = plan.model, plan.deployment
    wanted = list(dict.fromkeys((plan.limit, *lengths)))
    found = [plan.at(length) for length in wanted]
    most = deployment.max_num_seqs
    natural = report_natural(plan.natural, [at.natural for at in found], trace, most)
    theirs = None
    if plan.vllm is not None:
        held = [at.vllm for at in found if at.vllm is not None]
        theirs = report_vllm(plan.vllm, held, trace, most)
    return Report(
        model=model.name,
        model_type=model.model_type,
        verified=model.verified,
        notes=(*model.notes, *remark(model, deployment, plan.natural, plan.vllm)),
        layers=_count_layers(model, deployment.num_speculative_tokens),
        deployment=deployment,
        kv_cache_dtype=deployment.kv_dtype(model),
        memory_bytes=plan.memory_bytes,
        max_model_len=plan.limit,
        vllm=theirs,
        natural=natural,
        groups=natural.groups,
        warnings=(
            *advise(model, deployment, plan.natural, plan.vllm, plan.vllm_refusal),
            *advise_on_lengths(plan.limit, wanted, most, natural, theirs),
            *filter(None, (too_long(plan.limit, trace),)),
        ),
        sglang=_report_sglang(plan, found, trace),
        sglang_refusal=plan.sglang_refusal,
        verdict=judge(
            natural, theirs, natural_refusals(model, deployment), most, step_time(model, deployment)
        ),
    )


def check_block_size(deployment: Deployment) -> None:
    """Refuse what ``get_supported_kernel_block_sizes`` of no attention backend on CUDA allows."""
    size = deployment.block_size
    if size is not None and size % KERNEL_BLOCK_TOKENS:
        raise PlanError(
            f"--block-size {size}: attention kernels take blocks of {KERNEL_BLOCK_TOKENS} tokens "
            f"or a multiple; give {round_up(size, KERNEL_BLOCK_TOKENS)}"
        )


def _tried(
    make: Callable[[Model, int, Deployment], T], *case: *tuple[Model, int, Deployment]
) -> tuple[T | None, str | None]:
    """Return a plan, or why there is none."""
    try:
        return make(*case), None
    except PlanError as error:
        return None, str(error)


def _report_sglang(plan: Plan, found: Sequence[At], trace: Sequence[int]) -> SglangReport | None:
    if (pools := plan.sglang) is None:
        return None
    return SglangReport(
        release=RELEASE,
        strategy=pools.strategy,
        state_bytes=pools.state_bytes,
        state_slots=pools.state_slots,
        slots_per_request=pools.slots_per_request,
        tokens=pools.tokens,
        window_tokens=pools.window_tokens,
        max_running=pools.max_running,
        lengths=tuple(at.sglang for at in found if at.sglang is not None),
        trace=plan.at(round(sum(trace) / len(trace))).sglang if trace else None,
    )


def _count_layers(model: Model, num_speculative_tokens: int) -> dict[str, int]:
    names = (
        layer.cache.family if isinstance(layer.cache, State) else layer.cache.kind
        for layer in model.active_layers(num_speculative_tokens)
    )
    return dict(Counter(names))
