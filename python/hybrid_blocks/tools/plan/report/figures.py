"""The figures of one plan, the same for both, so that they stand side by side."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType

import msgspec

from hybrid_blocks.arithmetic import requests_that_fit
from hybrid_blocks.geometry import capacity
from hybrid_blocks.geometry.arena import ArenaPlan
from hybrid_blocks.tools.plan.vllm import VllmPlan
from hybrid_blocks.tools.plan.vllm.spec import Spec

PARTS: Mapping[str, str] = MappingProxyType(
    {
        "live": "tokens that are still read, and states",
        "rounding": "blocks that are not full, or reach out of a window",
        "padding": "pages, strides and empty layers that equalize blocks",
        "null": "the null block, or the slab that holds the null blocks",
        "unused": "room for less than one more request",
        "tail": "memory behind the last whole slab or block",
    }
)
"""Where bytes go, in the order in which they are shown."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one GPU's free KV memory, which `PARTS` add up to."""

    length: int
    requests: int
    live: int
    rounding: int
    padding: int
    null: int
    unused: int
    tail: int

    @property
    def total(self) -> int:
        """The whole memory."""
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by name, in the order of `PARTS`."""
        return {name: getattr(self, name) for name in PARTS}


class AtLength(msgspec.Struct, frozen=True, kw_only=True):
    """Capacity for requests of one length, or of a mean length.

    Memory holds ``concurrency`` of them; ``running`` is that, capped by ``max_num_seqs``.
    """

    length: int
    concurrency: float
    running: float
    tokens: int

    @property
    def whole(self) -> int:
        """Whole requests that run at once."""
        return int(self.running)


class FullOf(AtLength, frozen=True, kw_only=True):
    """Capacity for requests of one length, and where the bytes go when it is reached."""

    budget: Budget


class GroupReport(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table of groups. ``page_bytes`` is the sum over the layers of one block.

    ``blocks_per_request`` are held by a request of the maximum length while it decodes, by a state
    group ``slots_per_request``, whatever the length. ``num_slots`` token slots are addressed: the
    largest slot-mapping value plus 1.
    """

    name: str
    kind: str
    layers: int
    padding_layers: int
    block_tokens: int
    page_bytes: int
    block_bytes: int
    blocks_per_request: int
    slots_per_request: int | None = None
    window: int | None = None
    blocks_per_slab: int | None = None
    pool: int | None = None
    num_slots: int | None = None


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """One plan. ``lengths`` starts with the maximum length; ``trace`` is the mix of a trace.

    ``trace_lost`` is the share of that mix's bytes that vLLM rounds and pads. A field means the
    same in both plans. ``max_concurrency`` is how many requests of the maximum length run at once,
    and ``tokens`` that times the length. ``blocks_per_request`` counts the blocks that one of them
    holds while it decodes. ``state_slots`` of every state group would fit if nothing else were
    held; ``cuda_graph_batch`` is the largest ``max_num_seqs`` for which vLLM captures full CUDA
    graphs. The ``logged`` figures are those that vLLM reckons with when it starts, and writes to
    its log; level ``natural`` has none, nor has a vLLM that refuses to start.
    """

    block_tokens: int
    block_bytes: int
    num_blocks: int
    blocks_per_request: int
    tokens: int
    max_concurrency: float
    max_length: int
    state_slots: int | None
    cuda_graph_batch: int | None
    lengths: tuple[FullOf, ...]
    groups: tuple[GroupReport, ...]
    logged_tokens: int | None = None
    logged_concurrency: float | None = None
    logged_blocks_per_request: int | None = None
    trace: AtLength | None = None
    trace_lost: float | None = None
    slab_bytes: int | None = None
    num_slabs: int | None = None
    hash_block_size: int | None = None


def natural_at(geometry: ArenaPlan, length: int, max_num_seqs: int) -> FullOf:
    """Figures of an arena full of requests of one length."""
    budget = natural_budget(geometry, length)
    return _full_of(capacity.concurrency(geometry, length), max_num_seqs, budget)


def vllm_at(plan: VllmPlan, length: int, max_num_seqs: int) -> FullOf:
    """Figures of vLLM's pool full of requests of one length."""
    return _full_of(plan.concurrency(length), max_num_seqs, vllm_budget(plan, length))


def _full_of(concurrency: float, max_num_seqs: int, budget: Budget) -> FullOf:
    return FullOf(
        length=budget.length,
        concurrency=concurrency,
        running=min(concurrency, max_num_seqs),
        tokens=int(concurrency * budget.length),
        budget=budget,
    )


def report_natural(
    geometry: ArenaPlan, lengths: Sequence[FullOf], trace: Sequence[int], max_num_seqs: int
) -> PlanReport:
    """Figures of an arena; ``lengths`` starts with the maximum."""
    longest = lengths[0]
    limit = longest.length
    first = next((group for group in geometry.groups if group.grows), geometry.groups[0])
    return PlanReport(
        block_tokens=first.block_tokens,
        block_bytes=first.block_stride,
        num_blocks=capacity.growing_blocks(geometry),
        blocks_per_request=sum(geometry.decode_blocks(limit)),
        tokens=longest.tokens,
        max_concurrency=longest.concurrency,
        max_length=capacity.longest(geometry, limit),
        state_slots=capacity.state_slots(geometry),
        cuda_graph_batch=capacity.cuda_graph_batch(geometry),
        lengths=tuple(lengths),
        trace=_at_trace(
            trace,
            [capacity.slabs_of_first(geometry, n) for n in trace],
            [capacity.slabs_of_one(geometry, n) for n in trace],
            geometry.usable_slabs,
            max_num_seqs,
        ),
        groups=tuple(
            GroupReport(
                name=group.name,
                kind=group.kind,
                layers=len(group.layers),
                padding_layers=0,
                block_tokens=group.block_tokens,
                page_bytes=group.block_bytes,
                block_bytes=group.block_stride,
                blocks_per_request=group.blocks(limit, geometry.decode_tokens),
                slots_per_request=group.slots_per_request,
                window=group.window,
                blocks_per_slab=group.blocks_per_slab,
                pool=group.pool,
                num_slots=geometry.num_slots(group),
            )
            for group in geometry.groups
        ),
        slab_bytes=geometry.slab_bytes,
        num_slabs=geometry.num_slabs,
        hash_block_size=geometry.hash_block_size,
    )


def report_vllm(
    plan: VllmPlan, lengths: Sequence[FullOf], trace: Sequence[int], max_num_seqs: int
) -> PlanReport:
    """Figures of vLLM's pool; ``lengths`` starts with the maximum."""
    longest = lengths[0]
    limit = longest.length
    return PlanReport(
        block_tokens=plan.block_tokens,
        block_bytes=plan.block_bytes,
        num_blocks=plan.num_blocks,
        blocks_per_request=plan.decode_blocks(limit),
        tokens=longest.tokens,
        max_concurrency=longest.concurrency,
        max_length=plan.longest(),
        state_slots=plan.state_slots,
        cuda_graph_batch=plan.cuda_graph_batch,
        logged_tokens=plan.tokens if plan.starts else None,
        logged_concurrency=plan.max_concurrency if plan.starts else None,
        logged_blocks_per_request=plan.blocks_per_request(limit) if plan.starts else None,
        lengths=tuple(lengths),
        trace=_at_trace(
            trace,
            [plan.prefill_blocks(n) for n in trace],
            [plan.decode_blocks(n) for n in trace],
            plan.num_blocks - 1,
            max_num_seqs,
        ),
        trace_lost=_lost(plan, trace) if trace else None,
        groups=tuple(
            GroupReport(
                name=f"{group.spec.kind}.{index}",
                kind=group.spec.kind,
                layers=len(group.members),
                padding_layers=group.padding_layers,
                block_tokens=group.spec.block_tokens,
                page_bytes=sum(member.spec.unpadded_bytes for member in group.members),
                block_bytes=plan.block_bytes,
                blocks_per_request=group.spec.decode_blocks(limit, plan.decode_tokens),
                slots_per_request=group.spec.states,
                window=group.spec.window,
                num_slots=None
                if group.spec.slots is not None
                else plan.num_blocks * group.spec.block_tokens,
            )
            for index, group in enumerate(plan.groups)
        ),
    )


def _at_trace(
    trace: Sequence[int],
    firsts: Sequence[float],
    others: Sequence[float],
    units: int,
    max_num_seqs: int,
) -> AtLength | None:
    """Return the requests of a mix that fit on average: one computes its prompt, others decode."""
    if not trace:
        return None
    mean_length, first, other = (sum(it) / len(trace) for it in (trace, firsts, others))
    concurrency = requests_that_fit(units, first, other)
    return AtLength(
        length=round(mean_length),
        concurrency=concurrency,
        running=min(concurrency, max_num_seqs),
        tokens=int(concurrency * mean_length),
    )


def _lost(plan: VllmPlan, trace: Sequence[int]) -> float:
    """Return the share of the bytes of all requests of a mix that vLLM rounds and pads."""
    specs = Counter(member.spec for group in plan.widest_stage for member in group.members)
    live = sum(count * live_bytes(spec, n) for n in trace for spec, count in specs.items())
    return 1 - live / (plan.block_bytes * sum(map(plan.decode_blocks, trace)))


def rows(plan: PlanReport) -> Iterator[tuple[str, GroupReport]]:
    """Yield the name of each row and its group: neighbours that differ in their names alone."""
    unnamed = (msgspec.structs.replace(group, name="") for group in plan.groups)
    for group, members in groupby(unnamed):
        count = len(list(members))
        window = f" {group.window:,}" if group.window else ""
        yield f"{group.kind}{window}{f' x {count}' if count > 1 else ''}", group


def natural_budget(geometry: ArenaPlan, length: int) -> Budget:
    """Budget of an arena full of decoding requests of ``length`` tokens."""
    requests = capacity.requests(geometry, length)
    live = requests * geometry.live_bytes(length)
    blocks = [
        (group, requests * group.blocks(length, geometry.decode_tokens))
        for group in geometry.groups
    ]
    held = sum(count * group.block_bytes for group, count in blocks)
    padded = sum(count * group.block_stride for group, count in blocks)
    return Budget(
        length=length,
        requests=requests,
        live=live,
        rounding=held - live,
        padding=padded - held,
        null=geometry.slab_bytes,
        unused=geometry.usable_slabs * geometry.slab_bytes - padded,
        tail=geometry.memory_bytes - geometry.arena_bytes,
    )


def vllm_budget(plan: VllmPlan, length: int) -> Budget:
    """Budget of vLLM's pool full of decoding requests of ``length`` tokens."""
    requests = plan.requests(length)
    live = pages = 0
    for group in plan.widest_stage:
        for member in group.members:
            count = member.spec.decode_blocks(length, plan.decode_tokens)
            live += live_bytes(member.spec, length)
            pages += count * member.spec.unpadded_bytes
    blocks = requests * plan.decode_blocks(length) * plan.block_bytes
    return Budget(
        length=length,
        requests=requests,
        live=requests * live,
        rounding=requests * (pages - live),
        padding=blocks - requests * pages,
        null=plan.block_bytes,
        unused=(plan.num_blocks - 1) * plan.block_bytes - blocks,
        tail=plan.memory_bytes - plan.num_blocks * plan.block_bytes,
    )


def live_bytes(spec: Spec, length: int) -> int:
    """Bytes that a request of ``length`` tokens needs in one layer, with no rounding to blocks."""
    if spec.states is not None:
        return spec.states * spec.unpadded_bytes
    return spec.rules.num_live_tokens(length) * spec.unpadded_bytes // spec.block_tokens
