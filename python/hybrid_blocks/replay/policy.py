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

ALPHAS = (0.5, 1.0, 1.5, 2.0)
"""Alphas that are tried beside 0, which is eviction by age."""

LEAST_GAIN = 1.03
"""Times the FLOPs saved by age that another alpha must save to be chosen. One that saves less on
the window may lose more on the rest: 7 % of the FLOPs of ``conversations``, Qwen3.5-27B, at 5 %.
What clients say of their sessions counts wherever it saves anything."""


class PolicyName(StrEnum):
    """The names of policies on the command line."""

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
    """Choose the alpha that saves most FLOPs on the first requests, 0 unless it gains enough."""
    if cache.model is None:
        raise ReplayError("--policy flop needs the FLOPs of a model: give --model and --memory")
    window = trace.head(max(1, int(WINDOW * len(trace))))
    flops = flops_of(cache.model)

    def saved_by(tuned: RustOptions) -> float:
        manager = make_manager(ManagerName.RUST, cache, config, rust=tuned)
        engine = Engine(window, manager, cache, replace(config, reject_too_large=True))
        engine.run()
        return engine.counters.saved_flops

    others = [replace(options, policy=flops.model(alpha)) for alpha in ALPHAS]
    least = saved_by(options) * (LEAST_GAIN if options.signals is None else 1.0)
    gain, tuned = max(((saved_by(it), it) for it in others), key=lambda row: row[0])
    return tuned if gain > least else options
