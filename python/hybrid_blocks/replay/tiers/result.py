"""The figures of a replay with tiers below the device."""

import msgspec

from hybrid_blocks.replay.result import Served


class TierFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one tier; the field names are those of ``--json``.

    Attributes:
        tier: ``device``, ``host`` or ``disk``.
        total_bytes: how large it is.
        hit_tokens: prompt tokens found there when their request first ran. A token counts with the
            tier that is farthest from the device of those that hold what it needs.
        hit_rate: ``hit_tokens`` over the prompt tokens.
        stored_bytes: what was copied to it from the tier above.
        evicted_bytes: what lost its place.
        refused: stores that found no room; chunks, of the disk.

    """

    tier: str
    total_bytes: int
    hit_tokens: int
    hit_rate: float
    stored_bytes: int | None = None
    evicted_bytes: int | None = None
    refused: int | None = None


class TieredResult(Served, frozen=True, kw_only=True):
    """The figures of one replay with tiers; the field names are those of ``--json``.

    Attributes:
        trace: name of the trace.
        manager: whose manager keeps host memory and disk.
        requests: requests finished.
        rejected_requests: requests too large for the device, left out.
        left_out: the same with the reason.
        damaged_lines: lines of the trace that were skipped; the rest of `Served` as in a `Result`.
        prompt_tokens: of the requests that ran.
        output_tokens: sampled.
        hit_tokens: prompt tokens found in any tier when their request first ran.
        hit_rate: ``hit_tokens / prompt_tokens``.
        tiers: the same by tier, the device first.
        promotions: chunks read from the disk to host memory.
        promoted_bytes: their bytes.
        wasted_promotions: those that were never loaded to the device.
        loaded_chunks: chunks copied from host memory to the device.
        host_live_share: bytes of live chunks in host memory over its size, in the end. From live
            chunks some request could resume with host memory alone. None if nothing was evicted.
        preemptions: times that a running request lost its blocks.
        peak_running: most requests running at once.
        steps: steps of the scheduler.
        virtual_seconds: from the start of the trace to the end of the last step.
        wall_seconds: what the replay took.

    """

    tiers: tuple[TierFigures, ...]
    promotions: int
    promoted_bytes: int
    wasted_promotions: int
    loaded_chunks: int
    host_live_share: float | None
    preemptions: int
    peak_running: int
    steps: int
    virtual_seconds: float
    wall_seconds: float
