"""Warnings that a person acts on, and notes that explain a figure."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from hybrid_blocks.geometry import capacity
from hybrid_blocks.geometry.arena import ArenaPlan
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.geometry.kernel_blocks import KERNEL_BLOCK_TOKENS
from hybrid_blocks.model import Model
from hybrid_blocks.model.described import DESCRIBED
from hybrid_blocks.model.layer import Attention, State
from hybrid_blocks.tools.plan.natural_refusals import natural_refusals
from hybrid_blocks.tools.plan.report.figures import AtLength, PlanReport
from hybrid_blocks.tools.plan.vllm import VllmPlan, align
from hybrid_blocks.units import human

SHORTEST: Final = 1
"""Tokens of the request that takes the fewest blocks."""

_SLIGHT: Final = 0.01
"""Share of a page whose padding needs no warning."""


def advise(
    model: Model,
    deployment: Deployment,
    geometry: ArenaPlan,
    vllm: VllmPlan | None,
    refusal: str | None,
) -> tuple[str, ...]:
    """All warnings for a plan; ``refusal`` is why there is no plan of vLLM's."""
    warnings = [
        *_about_model(model, deployment),
        *_about_natural(deployment, geometry, deployment.length(model)),
        *(
            f"natural: vLLM runs at level manager ({refusal})"
            for refusal in natural_refusals(model, deployment)
        ),
    ]
    if vllm is None:
        return (*warnings, f"vLLM cannot serve this model: {refusal}")
    return (
        *warnings,
        *_about_blocks(deployment, vllm),
        *_about_states(deployment, vllm),
        *_about_padding_layers(vllm),
        *_about_padded_pages(vllm, slight=False),
        *_about_length(vllm),
    )


def remark(
    model: Model, deployment: Deployment, geometry: ArenaPlan, vllm: VllmPlan | None
) -> tuple[str, ...]:
    """Return what explains figures and calls for nothing."""
    notes = []
    slots = capacity.state_slots(geometry)
    if slots is not None and deployment.max_num_seqs > slots // geometry.decode_tokens:
        notes.append(
            f"natural: max_num_seqs {deployment.max_num_seqs} exceeds the "
            f"{slots // geometry.decode_tokens} sequences whose states fit"
        )
    if vllm is None:
        return tuple(notes)
    notes += _about_card(model, deployment)
    notes += _about_shortest(model, deployment, vllm)
    notes += _about_batches(deployment, vllm)
    notes += _about_padded_pages(vllm, slight=True)
    return tuple(notes)


def _about_card(model: Model, deployment: Deployment) -> list[str]:
    """Say which card's kernels size vLLM's blocks of states."""
    if not model.is_hybrid or deployment.mamba_cache_mode != "align":
        return []
    if deployment.card is None:
        return [
            "vLLM's blocks are those of kernels that write states only where a forward ends; on "
            "Hopper and Blackwell name the card (--gpu)"
        ]
    alignment = align.alignment(model, deployment)
    release = ".".join(map(str, deployment.release))
    sentence = "its kernels write states only where a forward ends"
    if alignment is not None:
        sentence = (
            "its kernels write states from inside a forward, for which each group of states counts "
            "one more block a request"
        )
    if alignment is not None and alignment > KERNEL_BLOCK_TOKENS:
        sentence += f", and blocks are multiples of {alignment} tokens"
    return [f"vLLM {release} as on {deployment.card} (--gpu): {sentence}"]


def _about_model(model: Model, deployment: Deployment) -> list[str]:
    warnings = []
    if model.verified in ("unverified", "partly verified"):
        warnings.append(f"the sizes of {model.name} are {model.verified}")
    if deployment.max_model_len is None and model.max_model_len is None:
        warnings.append(
            f"the maximum length of {model.name} is not known; {deployment.length(model):,} tokens "
            "are assumed (--max-model-len)"
        )
    warnings += _about_described_states(model, deployment)
    fewest = min(
        (layer.cache.kv_heads for layer in model.layers if isinstance(layer.cache, Attention)),
        default=deployment.tp,
    )
    if fewest < deployment.tp:
        warnings.append(
            f"{fewest} KV heads are replicated over --tp {deployment.tp}: each head is stored "
            f"{deployment.tp // fewest} times"
        )
    return warnings


def _about_described_states(model: Model, deployment: Deployment) -> list[str]:
    """States whose size hangs on a format that neither the description nor an option names."""
    if model.model_type != DESCRIBED or deployment.mamba_ssm_dtype != "auto":
        return []
    counts = Counter(
        layer.cache.family
        for layer in model.layers
        if isinstance(layer.cache, State) and layer.cache.ssm_dtype is None
        if layer.cache.takes_ssm_dtype
    )
    return [
        f"{count} {family} layers name no ssm_dtype: their states are planned in {model.dtype}, "
        "the model's own format; vLLM's models often keep float32 (--mamba-ssm-dtype)"
        for family, count in counts.items()
    ]


def _about_natural(deployment: Deployment, geometry: ArenaPlan, length: int) -> list[str]:
    warnings = []
    batch = capacity.cuda_graph_batch(geometry)
    if batch is not None and deployment.max_num_seqs > batch:
        warnings.append(_no_graphs("natural", deployment, batch, "slabs"))
    fits = capacity.longest(geometry, length)
    if fits < length:
        need = capacity.needed_bytes(geometry, length)
        warnings.append(_too_long("natural", fits, length, need, geometry.memory_bytes))
    return warnings


def _about_blocks(deployment: Deployment, vllm: VllmPlan) -> list[str]:
    asked = deployment.block_size or KERNEL_BLOCK_TOKENS
    if vllm.state_slots is None or vllm.block_tokens <= asked:
        return []
    warnings = []
    block = f"vLLM: attention block inflated to {vllm.block_tokens:,} tokens"
    if deployment.mamba_cache_mode == "align":
        warnings.append(f"{block}: prompts below it hit only with a finer --prefix-match-unit")
        if deployment.max_num_batched_tokens < vllm.block_tokens:
            warnings.append(
                f"vLLM: max_num_batched_tokens {deployment.max_num_batched_tokens:,} is below the "
                f"block of {vllm.block_tokens:,} tokens: mamba cache mode align does not allow it"
            )
    else:
        warnings.append(f"{block}; mamba cache mode none has no prefix cache")
    return warnings


def _about_states(deployment: Deployment, vllm: VllmPlan) -> list[str]:
    batch = vllm.cuda_graph_batch
    if batch is None or deployment.max_num_seqs <= batch:
        return []
    return [_no_graphs("vLLM", deployment, batch, "blocks")]


def _about_shortest(model: Model, deployment: Deployment, vllm: VllmPlan) -> list[str]:
    most = vllm.requests(SHORTEST)
    if vllm.cuda_graph_batch is None or not model.is_hybrid or deployment.max_num_seqs <= most:
        return []
    states = sum(group.spec.states or 0 for group in vllm.groups)
    attention = vllm.decode_blocks(SHORTEST) - states
    return [
        f"vLLM: each request takes {_count(states, 'state block')} and at least "
        f"{_count(attention, 'attention block')}, so at most {most} of "
        f"max_num_seqs {deployment.max_num_seqs} run, however short they are"
    ]


def _about_batches(deployment: Deployment, vllm: VllmPlan) -> list[str]:
    """Say how many batches in flight the logged figure counts, where windows hold their tokens."""
    if deployment.in_flight_batches is not None or not vllm.starts:
        return []
    batches = vllm.in_flight_tokens // deployment.max_num_batched_tokens
    tokens = (batches - 1) * deployment.max_num_batched_tokens
    other = msgspec.structs.replace(vllm, in_flight_tokens=tokens)
    if other.tokens == vllm.tokens:
        return []
    return [
        f"vLLM logs {vllm.tokens:,} tokens with {batches} batches in flight, whose tokens windows "
        f"hold, as with asynchronous scheduling, its default; without it, {other.tokens:,} "
        f"(--in-flight-batches {batches - 1})"
    ]


def _no_graphs(who: str, deployment: Deployment, batch: int, pool: str) -> str:
    return (
        f"{who}: max_num_seqs {deployment.max_num_seqs} exceeds the {batch:,} {pool}: CUDA graph "
        f"capture fails; use --max-num-seqs {batch}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _about_padding_layers(vllm: VllmPlan) -> list[str]:
    warnings = []
    by_kind: dict[str, tuple[int, int]] = {}
    for group in vllm.groups:
        layers, padding = by_kind.get(group.spec.kind, (0, 0))
        by_kind[group.spec.kind] = (layers + len(group.members), padding + group.padding_layers)
    for kind, (layers, padding) in by_kind.items():
        if padding:
            warnings.append(
                f"vLLM: {padding} padding layers waste {100 * padding / layers:.2f} % beside "
                f"{layers} {kind} layers"
            )
    return warnings


def _about_padded_pages(vllm: VllmPlan, *, slight: bool) -> list[str]:
    warnings = []
    for spec in {member.spec for group in vllm.groups for member in group.members}:
        share = spec.page_bytes / spec.unpadded_bytes - 1
        if share > 0 and (share < _SLIGHT) == slight:
            warnings.append(
                f"vLLM: pages of {spec.kind} layers padded by {100 * share:.2f} % to "
                f"{spec.page_bytes:,} bytes"
            )
    return warnings


def _about_length(vllm: VllmPlan) -> list[str]:
    if vllm.starts:
        return []
    need = vllm.needed_bytes(vllm.max_model_len)
    return [_too_long("vLLM", vllm.longest(), vllm.max_model_len, need, vllm.memory_bytes)]


def _too_long(who: str, fits: int, length: int, need: int, memory: int) -> str:
    return (
        f"{who}: KV of one request does not fit: {length:,} tokens need {human(need)}, "
        f"{human(memory)} are there; max length that fits is {fits:,}"
    )


def too_long(limit: int, trace: Sequence[int]) -> str | None:
    """Say how many requests of a trace an engine refuses, or nothing if it takes all of them."""
    if not (longer := [length for length in trace if length > limit]):
        return None
    return (
        f"{len(longer):,} of {len(trace):,} requests of the trace exceed the maximum length of "
        f"{limit:,}, the longest has {max(longer):,} tokens: an engine refuses such a request"
    )


def advise_on_lengths(
    limit: int,
    lengths: Sequence[int],
    max_num_seqs: int,
    natural: PlanReport,
    vllm: PlanReport | None,
) -> list[str]:
    """Return what to know of each length; ``limit`` is the maximum length."""
    warnings = [
        f"{length:,} tokens exceed the maximum length of {limit:,} (--max-model-len): an engine "
        "refuses such a request"
        for length in dict.fromkeys(lengths)
        if length > limit
    ]
    theirs = [None] * len(natural.lengths) if vllm is None else vllm.lengths
    per_length = [_held(*pair) for pair in zip(natural.lengths, theirs, strict=True)]
    caps = {
        ours.length: held for ours, held in zip(natural.lengths, per_length, strict=True) if held
    }
    if caps:
        shortest, *longer = sorted(caps)
        what = ", ".join(f"{length:,}" for length in (shortest, *longer))
        in_memory = caps[shortest] + (f" of {shortest:,}" if longer else "")
        warnings.append(_capped(f"requests of {what}", in_memory, max_num_seqs))
    if held := _held(natural.trace, None if vllm is None else vllm.trace):
        warnings.append(_capped("requests of the trace", held, max_num_seqs))
    return warnings


def _held(natural: AtLength | None, vllm: AtLength | None) -> str:
    """Return what memory holds where it is more than runs, else ""."""
    sides = {"natural": natural, "vLLM": vllm}
    return ", ".join(
        f"{one.concurrency:,.2f}x ({name})"
        for name, one in sides.items()
        if one is not None and one.concurrency > one.running
    )


def _capped(what: str, in_memory: str, max_num_seqs: int) -> str:
    return (
        f"max_num_seqs {max_num_seqs:,} caps {what}; memory holds {in_memory}: raise "
        "--max-num-seqs to run more"
    )
