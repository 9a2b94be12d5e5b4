"""Everything a plan says, as data: what ``--json`` writes and the tables show."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from hybrid_blocks.arithmetic import round_up
from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.model.layer import State
from hybrid_blocks.plan.deployment import Deployment
from hybrid_blocks.plan.geometry import capacity
from hybrid_blocks.plan.geometry.arena import ArenaPlan
from hybrid_blocks.plan.geometry.natural import plan_natural
from hybrid_blocks.plan.natural_refusals import natural_refusals
from hybrid_blocks.plan.report.advice import advise, remark
from hybrid_blocks.plan.report.capped import advise_on_lengths
from hybrid_blocks.plan.report.plan_report import (
    GroupReport,
    PlanReport,
    report_natural,
    report_vllm,
)
from hybrid_blocks.plan.report.sglang_report import SglangReport, try_sglang
from hybrid_blocks.plan.report.verdict import Verdict, judge
from hybrid_blocks.plan.vllm import VllmPlan, plan_vllm
from hybrid_blocks.plan.vllm.align import KERNEL_BLOCK_TOKENS
from hybrid_blocks.units import human


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A model, a deployment, and both plans for the same bytes.

    ``vllm`` is None where vLLM cannot serve the model at all; a warning says why. ``sglang`` is
    None where it is not planned, and ``sglang_refusal`` says why.
    ``verdict`` compares both plans; reports of earlier versions have none.
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
    sglang: SglangReport | None = None
    sglang_refusal: str | None = None
    verdict: Verdict | None = None


def make_report(
    model: Model,
    memory_bytes: int,
    deployment: Deployment,
    lengths: Sequence[int] = (),
    trace: Sequence[int] = (),
) -> Report:
    """Plan a model both ways.

    ``lengths`` are request lengths of interest besides the maximum, ``trace`` the lengths of a
    workload's requests.

    Raises:
        PlanError: neither plan holds one request of the maximum length; says which length fits. Or
            no kernel takes blocks of ``--block-size``.

    """
    check_block_size(deployment)
    geometry = plan_natural(model, memory_bytes, deployment)
    vllm: VllmPlan | None = None
    refusal: str | None = None
    try:
        vllm = plan_vllm(model, memory_bytes, deployment)
    except PlanError as error:
        refusal = str(error)
    limit = deployment.length(model)
    _check_one_fits(model, geometry, vllm, limit)
    wanted = (limit, *lengths)
    most = deployment.max_num_seqs
    natural = report_natural(geometry, wanted, trace, most)
    theirs = report_vllm(vllm, wanted, trace, most) if vllm else None
    sglang, sglang_refusal = try_sglang(model, memory_bytes, deployment, wanted, trace)
    spec_tokens = deployment.num_speculative_tokens
    return Report(
        model=model.name,
        model_type=model.model_type,
        verified=model.verified,
        notes=(*model.notes, *remark(model, deployment, geometry, vllm)),
        layers=_count_layers(model, spec_tokens),
        deployment=deployment,
        kv_cache_dtype=deployment.kv_dtype(model),
        memory_bytes=memory_bytes,
        max_model_len=limit,
        vllm=theirs,
        natural=natural,
        groups=natural.groups,
        warnings=(
            *advise(model, deployment, geometry, vllm, refusal),
            *advise_on_lengths(limit, wanted, most, natural, theirs),
        ),
        sglang=sglang,
        sglang_refusal=sglang_refusal,
        verdict=judge(natural, theirs, natural_refusals(model, deployment), most),
    )


def check_block_size(deployment: Deployment) -> None:
    """Refuse what ``get_supported_kernel_block_sizes`` of no attention backend on CUDA allows."""
    size = deployment.block_size
    if size is not None and size % KERNEL_BLOCK_TOKENS:
        raise PlanError(
            f"--block-size {size}: attention kernels take blocks of {KERNEL_BLOCK_TOKENS} tokens "
            f"or a multiple; give {round_up(size, KERNEL_BLOCK_TOKENS)}"
        )


def _check_one_fits(model: Model, geometry: ArenaPlan, vllm: VllmPlan | None, limit: int) -> None:
    fits = capacity.longest(geometry, limit)
    if max(fits, vllm.longest() if vllm else 0) >= limit:
        return
    need, length = human(capacity.needed_bytes(geometry, limit)), f"{fits:,}"
    if vllm is not None:
        need += f" at level natural and {human(vllm.needed_bytes(limit))} in vLLM's blocks"
        length += f" at level natural and {vllm.longest():,} in vLLM's blocks"
    raise PlanError(
        f"KV of one request does not fit: {limit:,} tokens of {model.name} need {need}, "
        f"{human(geometry.memory_bytes)} are there; max length that fits is {length}"
    )


def _count_layers(model: Model, num_speculative_tokens: int) -> dict[str, int]:
    names = (
        layer.cache.family if isinstance(layer.cache, State) else layer.cache.kind
        for layer in model.active_layers(num_speculative_tokens)
    )
    return dict(Counter(names))
