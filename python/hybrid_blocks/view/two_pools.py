"""SGLang's memory: a pool of states and a pool of tokens, whose idle parts help no other pool."""

from collections.abc import Sequence

import msgspec

from hybrid_blocks.model import Model
from hybrid_blocks.plan.deployment import Deployment
from hybrid_blocks.plan.report.report import Report
from hybrid_blocks.plan.report.sglang_report import SglangAtLength, SglangPools
from hybrid_blocks.plan.sglang import plan_sglang

IDLE = "idle"


class PoolsFull(msgspec.Struct, frozen=True, kw_only=True):
    """Both pools, full of requests of one length; ``parts`` are owners and bytes, from the left."""

    shown: str
    binds: str
    parts: tuple[tuple[str, int], ...]


class TwoPools(msgspec.Struct, frozen=True, kw_only=True):
    """SGLang's default pools at every length of a page."""

    name: str
    at: tuple[PoolsFull, ...]


def two_pools(
    model: Model, memory_bytes: int, deployment: Deployment, report: Report, lengths: Sequence[int]
) -> TwoPools | None:
    """Return the pools, or None for a model that SGLang keeps in one pool or that is not planned.

    ``report`` has figures at all ``lengths``.
    """
    pools = None if report.sglang is None else report.sglang.strategies[0]
    if report.sglang is None or pools is None or pools.state_slots is None:
        return None
    token_bytes = plan_sglang(model, memory_bytes, deployment).costs.token_bytes
    by_length = {at.length: at for at in pools.lengths}
    ratio = "" if pools.ratio is None else f", ratio {pools.ratio}"
    return TwoPools(
        name=f"SGLang {report.sglang.release}, {pools.strategy}{ratio}",
        at=tuple(
            _full(pools, by_length[length], token_bytes, deployment.max_num_seqs)
            for length in lengths
        ),
    )


def _full(pools: SglangPools, at: SglangAtLength, token_bytes: int, max_num_seqs: int) -> PoolsFull:
    slots, each = pools.state_slots or 0, pools.slots_per_request or 0
    used = int(at.running) * each * pools.state_bytes
    cap = slots // each if each else slots
    if at.running >= max_num_seqs:
        binds = "max_num_seqs binds"
    else:
        binds = f"the pool of {'states' if at.running >= cap else 'tokens'} binds"
    return PoolsFull(
        shown=f"{int(at.running):,}",
        binds=binds,
        parts=(
            ("states", used),
            (IDLE, max(slots * pools.state_bytes - used, 0)),
            ("attention", pools.tokens * token_bytes - at.idle_bytes),
            (IDLE, at.idle_bytes),
        ),
    )
