"""Managers and placements side by side: the same requests, the same bytes."""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from hybrid_blocks.tools.replay.cache import Cache
from hybrid_blocks.tools.replay.clock import Timeline
from hybrid_blocks.tools.replay.config import EngineConfig
from hybrid_blocks.tools.replay.errors import RefusedRequestError
from hybrid_blocks.tools.replay.limits import Refusal
from hybrid_blocks.tools.replay.managers import ManagerName
from hybrid_blocks.tools.replay.result import Result
from hybrid_blocks.tools.replay.run import replay, request_limits
from hybrid_blocks.tools.replay.variant import Variant
from hybrid_blocks.tools.trace import SharedPrefixes, Sharing, Trace

OnProgress = Callable[[Variant, int], None]
Runs = list[tuple[Result, Timeline]]


def compare(
    trace: Trace,
    cache: Cache,
    variants: Sequence[Variant],
    config: EngineConfig,
    *,
    share: str | None = None,
    sharing: Sharing | None = None,
    prefixes: SharedPrefixes | None = None,
    with_film: bool = False,
    on_progress: OnProgress = lambda *_: None,
) -> Runs:
    """Replay a trace with each variant over caches of the same bytes.

    All serve the same requests: none gets a request over the limit of one. If a manager refuses a
    request that its limit allows, and ``config`` lets requests be left out, all run again without
    it. ``share`` names the cache's size in the results. ``prefixes`` let checkpoints be counted by
    their place. ``on_progress`` gets the number of a variant's finished requests.

    Raises:
        ReplayError: a request that does not fit, where none may be left out.
    """
    settings = {variant.manager: variant.vllm for variant in variants}
    limits = request_limits(tuple(settings), cache, config, vllm=settings.get(ManagerName.VLLM))
    refused: list[Refusal] = []
    while True:
        runs: Runs = []
        for variant in variants:
            try:
                result, timeline = replay(
                    trace,
                    manager_name=variant.manager,
                    cache=cache,
                    config=config,
                    rust=variant.options(trace, cache, prefixes),
                    vllm=variant.vllm,
                    sharing=sharing,
                    prefixes=prefixes,
                    limits=limits,
                    refused=refused,
                    with_film=with_film,
                    on_progress=partial(on_progress, variant),
                )
            except RefusedRequestError as error:
                if not config.reject_too_large:
                    raise
                refused.append(Refusal(manager=variant.manager, request=error.request))
                break
            runs.append((_named(result, variant, share), timeline))
        else:
            return runs


def _named(result: Result, variant: Variant, share: str | None) -> Result:
    named = msgspec.structs.replace(result, variant=variant.name, share=share)
    if variant.manager is not ManagerName.RUST:
        return named
    return msgspec.structs.replace(named, placement=variant.placement)
