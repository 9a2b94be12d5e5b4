"""The words of ``replay``'s options, read: what is compared, and over which memory."""

from collections.abc import Sequence

import msgspec

from hybrid_blocks import CheckpointPolicy
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.cli.given import Given
from hybrid_blocks.tools.cli.replay_refuse import read_retention
from hybrid_blocks.tools.cli.replay_run import wanted_variants
from hybrid_blocks.tools.cli.speculative import draft_tokens
from hybrid_blocks.tools.cli.values import each_once
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.plan.report.report import check_block_size
from hybrid_blocks.tools.replay import Cache, ManagerName, block_cache, model_cache, read_num_blocks
from hybrid_blocks.tools.replay.cache import read_shares, share_text
from hybrid_blocks.tools.replay.run import Variant
from hybrid_blocks.tools.trace import Trace
from hybrid_blocks.units import parse_memory

DEFAULT_BLOCK_SIZE = 16


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Choices that a replay compares; ``shares`` are None where managers share one memory.

    ``host_bytes`` are 0 without host memory.
    """

    managers: Sequence[ManagerName]
    placements: Sequence[str]
    retention: int | None
    signal: float | None
    shares: Sequence[float] | None
    host_bytes: int

    def variants(self) -> tuple[Variant, ...]:
        """Return each manager with each of its choices."""
        return wanted_variants(
            *(self.managers, self.placements, self.retention, self.signal),
            host_bytes=self.host_bytes,
        )


def read_asked(
    managers: Sequence[ManagerName],
    placement: str,
    *,
    retention: str,
    signal: float | None,
    share: str | None,
    host: str | None,
) -> Asked:
    """Read options as they are written.

    Raises:
        InvalidArgumentError: a word is none of those that an option takes, or stands there twice.
        ReplayError: a number is none.

    """
    placements = each_once("--placement", placement.split(","))
    for name in placements:
        CheckpointPolicy(name)
    shares = None if share is None else read_shares(share)
    each_once("--share", [share_text(one) for one in shares or ()])
    return Asked(
        placements=placements,
        retention=read_retention(retention),
        shares=shares,
        host_bytes=0 if host is None else parse_memory(host, "--host"),
        managers=each_once("--manager", managers),
        signal=signal,
    )


def planned_cache(
    model: str, memory: str, deployment: Deployment, speculative: str | None, given: Given
) -> Cache:
    """Return the cache that ``--model`` plans in ``--memory``.

    Raises:
        PlanError: it cannot be planned.

    """
    planned = load_model(model) if speculative else None
    if drafts := draft_tokens(speculative, given, "num_speculative_tokens", planned):
        deployment = msgspec.structs.replace(deployment, num_speculative_tokens=drafts)
    check_block_size(deployment)
    return model_cache(model, memory, deployment)


def counted_cache(num_blocks: str, block_size: int | None, trace: Trace) -> Cache:
    """Return the cache of ``--num-blocks``, which may be as many as a trace needs.

    Raises:
        ReplayError: no number.

    """
    size = block_size or DEFAULT_BLOCK_SIZE
    return block_cache(read_num_blocks(num_blocks, trace, size), size)
