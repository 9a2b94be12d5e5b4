"""One replay, from a trace to its figures."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter

from hybrid_blocks.tools.replay.cache import Cache
from hybrid_blocks.tools.replay.clock import Timeline
from hybrid_blocks.tools.replay.config import EngineConfig
from hybrid_blocks.tools.replay.engine import Engine
from hybrid_blocks.tools.replay.limits import Refusal, RequestLimit
from hybrid_blocks.tools.replay.manager import ReplayManager
from hybrid_blocks.tools.replay.managers import (
    ManagerName,
    RustOptions,
    VllmOptions,
    make_manager,
)
from hybrid_blocks.tools.replay.managers.filmed import FilmedManager
from hybrid_blocks.tools.replay.places import PlaceCounter
from hybrid_blocks.tools.replay.result import Result
from hybrid_blocks.tools.trace import SharedPrefixes, Sharing, Trace


def request_limits(
    names: Sequence[ManagerName],
    cache: Cache,
    config: EngineConfig,
    *,
    rust: RustOptions | None = None,
    vllm: VllmOptions | None = None,
) -> tuple[RequestLimit, ...]:
    """Return the longest request that each manager can hold; each is made, and dropped."""
    return tuple(
        _limit(name, make_manager(name, cache, config, rust=rust, vllm=vllm)) for name in names
    )


def _limit(name: ManagerName, manager: ReplayManager) -> RequestLimit:
    return RequestLimit(
        manager=name,
        num_blocks=manager.num_blocks,
        max_tokens=manager.max_request_tokens,
        unit=manager.unit,
    )


def replay(
    trace: Trace,
    *,
    manager_name: ManagerName,
    cache: Cache,
    config: EngineConfig,
    rust: RustOptions | None = None,
    vllm: VllmOptions | None = None,
    sharing: Sharing | None = None,
    prefixes: SharedPrefixes | None = None,
    limits: Sequence[RequestLimit] = (),
    refused: Sequence[Refusal] = (),
    with_film: bool = False,
    on_progress: Callable[[int], None] = lambda _: None,
) -> tuple[Result, Timeline]:
    """Run a trace through a new manager of a cache.

    ``limits`` are those of all managers that the result is compared with, its own among them (see
    `request_limits`): requests over any of them are left out, so that all serve the same, and so
    are those that one of them ``refused``. ``prefixes``, at the cache's block size, have the
    checkpoints of the Rust manager counted by their place. ``sharing`` gives the result's
    sequential hit rate. ``on_progress`` gets the number of finished requests. ``with_film``
    keeps a film of the Rust manager in the timeline.
    """
    if manager_name is ManagerName.RUST and rust is not None:
        cache = cache.keeping(rust.checkpoint_format)
    places = PlaceCounter.of(trace, prefixes, cache.geometry) if prefixes else None
    if places is not None:
        rust = replace(rust or RustOptions(), places=places)
    with_film = with_film and manager_name is ManagerName.RUST
    if with_film:
        rust = replace(rust or RustOptions(), with_film=True)
    manager = make_manager(manager_name, cache, config, rust=rust, vllm=vllm)
    filmed = manager if isinstance(manager, FilmedManager) else None
    if not limits:
        limits = (_limit(manager_name, manager),)
    on_hit = places.use if places is not None else _ignore
    engine = _engine_class(rust)(
        trace,
        manager,
        cache,
        config,
        limits=limits,
        refused=refused,
        on_hit=on_hit,
        on_sample=_ignore if filmed is None else filmed.sample,
    )
    start = perf_counter()
    engine.run(on_progress)
    result = Result.of(
        engine,
        trace=trace,
        manager_name=manager_name,
        manager=manager,
        cache=cache,
        sharing=sharing,
        places=places if manager_name is ManagerName.RUST else None,
        wall_seconds=perf_counter() - start,
    )
    if filmed is not None:
        engine.timeline.film = filmed.film
    return result, engine.timeline


def _engine_class(rust: RustOptions | None) -> type[Engine]:
    if rust is None or not rust.host_bytes:
        return Engine
    from hybrid_blocks.tools.replay.hosted import HostedEngine  # noqa: PLC0415 - not in every build

    return HostedEngine


def _ignore(*_: object) -> None:
    pass
