"""Eviction policies as a replay sets them up."""

from dataclasses import replace
from enum import StrEnum

from hybrid_blocks.replay.cache import Cache
from hybrid_blocks.replay.config import EngineConfig
from hybrid_blocks.replay.engine import Engine
from hybrid_blocks.replay.errors import ReplayError
from hybrid_blocks.replay.flops import flops_of
from hybrid_blocks.replay.lookahead import Lookahead
from hybrid_blocks.replay.managers import ManagerName, RustOptions, make_manager
from hybrid_blocks.trace import Trace

WINDOW = 0.4
"""Share of the trace, from its start, on which alpha is chosen."""

ALPHAS = (0.0, 0.5, 1.0, 2.0)
"""Alphas that are tried, in lives of cached content; 0 is eviction by age."""


class PolicyName(StrEnum):
    """What a policy is called on the command line."""

    LRU = "lru"
    FLOP = "flop"
    LOOKAHEAD = "lookahead"


def read_policy(text: str) -> PolicyName:
    """Read the name of a policy.

    Raises:
        ReplayError: there is no such policy.
    """
    try:
        return PolicyName(text)
    except ValueError:
        raise ReplayError(f"{text!r} is no policy; known are {', '.join(PolicyName)}") from None


def apply_policy(
    name: PolicyName, trace: Trace, cache: Cache, config: EngineConfig, options: RustOptions
) -> RustOptions:
    """Set up a policy for a trace.

    Raises:
        ReplayError: FLOP-aware eviction without a model.
    """
    match name:
        case PolicyName.LRU:
            return options
        case PolicyName.LOOKAHEAD:
            block_size = cache.geometry.hash_block_size
            return replace(options, lookahead=Lookahead(trace, block_size, config.step_time))
        case PolicyName.FLOP:
            return _tune(trace, cache, config, options)


def _tune(trace: Trace, cache: Cache, config: EngineConfig, options: RustOptions) -> RustOptions:
    """Choose the alpha that saves most FLOPs on the first requests; the smallest of equals."""
    if cache.model is None:
        raise ReplayError("--policy flop needs the FLOPs of a model: give --model and --memory")
    window = trace.head(max(1, int(WINDOW * len(trace))))
    flops = flops_of(cache.model)
    tried = []
    for alpha in ALPHAS:
        tuned = replace(options, policy=flops.model(alpha)) if alpha else options
        engine = Engine(
            window,
            make_manager(ManagerName.RUST, cache, config, rust=tuned),
            cache,
            replace(config, reject_too_large=True),
        )
        engine.run()
        tried.append((engine.counters.saved_flops, -alpha, tuned))
    return max(tried, key=lambda row: row[:2])[2]
