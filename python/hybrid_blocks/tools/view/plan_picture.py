"""The data that the page of a plan shows: what `Report` says, at many lengths."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from hybrid_blocks.geometry.arena import ArenaPlan
from hybrid_blocks.model import Model
from hybrid_blocks.model.layer import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    SlidingWindow,
)
from hybrid_blocks.terminal import plain
from hybrid_blocks.tools.plan.report.figures import FullOf, live_bytes
from hybrid_blocks.tools.plan.report.report import At, Plan, Report
from hybrid_blocks.tools.plan.report.tables import deployment_text
from hybrid_blocks.tools.plan.vllm import VllmPlan
from hybrid_blocks.tools.view.page import OWNER_OF_KIND
from hybrid_blocks.units import human

SHORTEST: Final = 128
"""Tokens of the shortest request that a page shows."""

STEPS_PER_DOUBLING: Final = 4

_SAME: Final = 0.005
"""A smaller share of the requests is no difference."""

TYPICAL: Final = 8192
"""Tokens of the request that a page shows first."""

NATURAL, VLLM = "level natural", "vLLM 0.33"

_KINDS: Final = {
    FullAttention.kind: "full-attention",
    SlidingWindow.kind: "sliding-window",
    ChunkedAttention.kind: "chunked-attention",
    CrossAttention.kind: "cross-attention",
    LatentAttention.kind: "latent-attention",
    "gated_delta_net": "Gated DeltaNet",
    "kda": "KDA",
    "mamba1": "Mamba-1",
    "mamba2": "Mamba-2",
    "lightning": "lightning-attention",
    "rg_lru": "RG-LRU",
    "short_conv": "short-convolution",
}
_SIZES: Final = {
    "verified": ", sizes verified",
    "partly verified": ", sizes partly verified",
    "unverified": ", sizes not verified",
}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks alike that one request holds: their number, and the bytes of one of them.

    Runs of one ``pool`` share slabs. The bytes are those of `Budget`'s parts.
    """

    owner: str
    pool: int
    count: int
    live: int
    rounding: int
    padding: int

    @property
    def total(self) -> int:
        """Bytes of all blocks of the run."""
        return self.count * (self.live + self.rounding + self.padding)


class Full(msgspec.Struct, frozen=True, kw_only=True):
    """A memory full of requests of one length.

    ``shown`` is how many whole requests run at once; ``binds`` says what keeps more out.
    ``runs`` are those of one request, ``parts`` bytes as the tables have them, and ``shares`` the
    same as shares of the memory.
    """

    requests: int
    concurrency: float
    running: float
    shown: str
    binds: str
    runs: tuple[Run, ...]
    parts: dict[str, str]
    shares: dict[str, float]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One plan at every length of the page.

    ``unit`` is a block of vLLM's, or a slab; ``blocks`` says how large attention's blocks are.
    """

    name: str
    unit: str
    unit_bytes: int
    unit_text: str
    blocks: str
    null_bytes: int
    tail_bytes: int
    at: tuple[Full, ...]


class PlanPicture(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the page of a plan draws.

    ``lengths`` are those that its slider reaches, ``start`` the first one shown. ``sides`` are
    vLLM's plan, if there is one, and the natural one; ``is_same`` if they hold the same requests.
    ``sglang`` says how many requests SGLang runs at its defaults, if it is planned.
    """

    model: str
    layers: str
    deployment: str
    verdict: tuple[str, ...]
    is_same: bool
    memory_bytes: int
    max_num_seqs: int
    lengths: tuple[int, ...]
    start: int
    sides: tuple[Side, ...]
    sglang: tuple[str, ...] | None
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def make_plan_picture(
    plan: Plan, report: Report, card: str | None = None, *, first: int | None = None
) -> PlanPicture:
    """Show a plan at the lengths of a slider, those of a report among them.

    The memory is an estimate for ``card``, where there is one. The slider starts at requests of
    ``first`` tokens, else at 8,192.
    """
    reported = [one.length for one in report.natural.lengths]
    lengths = sorted({*reported, *_steps(plan.limit)})
    wanted = first or min(TYPICAL, plan.limit)
    found = [plan.at(length) for length in lengths]
    return PlanPicture(
        model=plain(name_text(plan.model)),
        layers=plain(_layers_text(plan.model, report)),
        deployment=deployment_text(report, card),
        verdict=report.verdict.lines,
        is_same=all(_is_same(at) for at in found),
        memory_bytes=plan.memory_bytes,
        max_num_seqs=plan.deployment.max_num_seqs,
        lengths=tuple(lengths),
        start=min(range(len(lengths)), key=lambda index: abs(lengths[index] - wanted)),
        sides=(*_vllm(plan, report, found), _natural(plan, report, found)),
        sglang=_sglang(found),
        notes=tuple(map(plain, report.notes)),
        warnings=tuple(map(plain, report.warnings)),
    )


def _is_same(at: At) -> bool:
    """Return whether both plans hold as many requests."""
    ours, theirs = at.natural, at.vllm
    if theirs is None:
        return False
    return abs(ours.concurrency - theirs.concurrency) <= _SAME * theirs.concurrency


def _sglang(found: Sequence[At]) -> tuple[str, ...] | None:
    held = [at.sglang for at in found if at.sglang is not None]
    return tuple(f"{at.whole:,}" for at in held) or None


def _steps(longest: int) -> list[int]:
    steps, index = [], 0
    while (length := round(SHORTEST * 2 ** (index / STEPS_PER_DOUBLING))) < longest:
        # A number that a person would write: four steps a doubling differ by more than 16 tokens.
        steps.append(length // 16 * 16)
        index += 1
    return steps


def _natural(plan: Plan, report: Report, found: Sequence[At]) -> Side:
    geometry = plan.natural
    return Side(
        name=NATURAL,
        unit="slab",
        unit_bytes=geometry.slab_bytes,
        unit_text=human(geometry.slab_bytes),
        blocks=_blocks(report.natural.block_tokens),
        null_bytes=geometry.slab_bytes,
        tail_bytes=geometry.memory_bytes - geometry.arena_bytes,
        at=tuple(_full(at.natural, held_in_slabs(geometry, at.natural.length)) for at in found),
    )


def _vllm(plan: Plan, report: Report, found: Sequence[At]) -> Iterator[Side]:
    """Yield vLLM's side, where there is one."""
    if (vllm := plan.vllm) is None or report.vllm is None:
        return
    yield Side(
        name=VLLM,
        unit="block",
        unit_bytes=vllm.block_bytes,
        unit_text=human(vllm.block_bytes),
        blocks=_blocks(report.vllm.block_tokens),
        null_bytes=vllm.block_bytes,
        tail_bytes=vllm.memory_bytes - vllm.num_blocks * vllm.block_bytes,
        at=tuple(_full(at.vllm, held_in_blocks(vllm, at.vllm.length)) for at in found if at.vllm),
    )


def _blocks(block_tokens: int) -> str:
    return f"attention keeps blocks of {block_tokens:,} tokens"


def _full(full: FullOf, runs: tuple[Run, ...]) -> Full:
    budget = full.budget
    return Full(
        requests=budget.requests,
        concurrency=full.concurrency,
        running=full.running,
        shown=_whole(full),
        binds=_binds(full, runs),
        runs=runs,
        parts={name: human(nbytes) for name, nbytes in budget.parts.items()},
        shares={name: nbytes / budget.total for name, nbytes in budget.parts.items()},
    )


def _whole(full: FullOf) -> str:
    """Return how many whole requests run, and whether an option caps them."""
    capped = " (max_num_seqs)" if full.running < full.concurrency else ""
    return f"{full.whole:,}{capped}"


def _binds(full: FullOf, runs: tuple[Run, ...]) -> str:
    """Say what keeps one more request out, and who takes most of a request's memory."""
    if full.running < full.concurrency:
        return f"max_num_seqs binds: memory would hold {int(full.concurrency):,}"
    held: dict[str, int] = {}
    for run in runs:
        held[run.owner] = held.get(run.owner, 0) + run.total
    whole = sum(held.values())
    parts = ", ".join(
        f"{owner} {nbytes / whole:.0%}"
        for owner, nbytes in sorted(held.items(), key=lambda item: -item[1])
    )
    return f"memory binds: a request takes {human(whole)}, {parts}"


def held_in_slabs(geometry: ArenaPlan, length: int) -> tuple[Run, ...]:
    """Return what a decoding request of ``length`` tokens holds of an arena, states first."""
    runs: list[Run] = []
    for group in sorted(geometry.groups, key=lambda group: -group.pool):
        count = group.blocks(length, geometry.decode_tokens)
        runs += _runs(
            OWNER_OF_KIND[group.kind],
            group.pool,
            count=count,
            live=group.live_bytes(length),
            content=group.block_bytes,
            size=group.block_stride,
        )
    return tuple(runs)


def held_in_blocks(plan: VllmPlan, length: int) -> tuple[Run, ...]:
    """Return what a decoding request of ``length`` tokens holds of vLLM's pool."""
    runs: list[Run] = []
    for group, held in zip(plan.groups, plan.widest_stage, strict=True):
        specs = [member.spec for member in held.members]
        runs += _runs(
            OWNER_OF_KIND[group.spec.kind],
            0,
            count=group.spec.decode_blocks(length, plan.decode_tokens),
            live=sum(live_bytes(spec, length) for spec in specs),
            content=sum(spec.unpadded_bytes for spec in specs),
            size=plan.block_bytes,
        )
    return tuple(runs)


def _runs(
    owner: str, pool: int, *, count: int, live: int, content: int, size: int
) -> Iterator[Run]:
    """Cut the blocks of a group into full ones, the one in part full, and those that are empty."""
    full = min(live // content, count) if content else 0
    rest = live - full * content
    parts = [(full, content)]
    if full < count and rest:
        parts.append((1, rest))
    parts.append((count - full - bool(full < count and rest), 0))
    for blocks, used in parts:
        if blocks:
            yield Run(
                owner=owner,
                pool=pool,
                count=blocks,
                live=used,
                rounding=content - used,
                padding=size - content,
            )


def name_text(model: Model) -> str:
    """Return a model's name; one that a file describes goes by its architecture."""
    if model.architecture is None or model.verified != "config":
        return model.name
    return f"{model.architecture}, {model.num_layers} layers"


def _layers_text(model: Model, report: Report) -> str:
    """Say how many layers there are of each kind, and where their sizes come from."""
    kinds = [f"{count} {_KINDS.get(kind, kind)}" for kind, count in report.layers.items()]
    listed = " and ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))
    source = "" if name_text(model) == model.name else f", read from {model.name}"
    return f"{listed} layers{_SIZES.get(report.verified, source)}"
