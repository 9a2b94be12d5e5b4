"""Replays of a trace: one manager, or several side by side over the same bytes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter

import msgspec

from hybrid_blocks import CheckpointPolicy
from hybrid_blocks.tools.replay.cache import Cache
from hybrid_blocks.tools.replay.clock import Timeline
from hybrid_blocks.tools.replay.config import EngineConfig, RefusedRequestError
from hybrid_blocks.tools.replay.engine import VirtualEngine
from hybrid_blocks.tools.replay.limits import Refusal, RequestLimit
from hybrid_blocks.tools.replay.managers import ManagerName, RustOptions, VllmOptions, make_manager
from hybrid_blocks.tools.replay.managers.filmed import FilmedManager
from hybrid_blocks.tools.replay.places import PlaceCounter
from hybrid_blocks.tools.replay.result import Result
from hybrid_blocks.tools.trace import SharedPrefixes, Sharing, Trace, shared_prefixes
from hybrid_blocks.tools.trace.sharing import session_signals
from hybrid_blocks.units import human


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One column or curve of a comparison.

    Attributes:
        manager: whose manager runs.
        placement: of the Rust manager's checkpoints, by name.
        signal: in what share of cases clients are right about their sessions; None if they say
            nothing. For the Rust manager.
        host_bytes: host memory below the Rust manager's device; 0 for none.
        vllm: settings of vLLM's manager.
    """

    manager: ManagerName = ManagerName.RUST
    placement: str = "learned"
    signal: float | None = None
    host_bytes: int = 0
    vllm: VllmOptions = field(default_factory=VllmOptions)

    @property
    def name(self) -> str:
        """The name of the variant in a report."""
        if self.manager is ManagerName.RUST:
            told = "" if self.signal is None else f" signal {self.signal:g}"
            host = f" and {human(self.host_bytes)} of host memory" if self.host_bytes else ""
            return f"{self.manager} {self.placement}{told}{host}"
        kept, unit = self.vllm.retention, self.vllm.match_unit
        by = "" if unit is None else f" by {unit}"
        return f"{self.manager} {'dense' if kept is None else kept or 'default'}{by}"

    def options(
        self, trace: Trace, cache: Cache, prefixes: SharedPrefixes | None = None
    ) -> RustOptions:
        """Set up the Rust manager for a trace and a cache; ``prefixes`` are of its block size.

        Raises:
            InvalidArgumentError: an unknown placement.
            TraceError: an accuracy that cannot be.
        """
        signals = None
        if self.signal is not None:
            prefixes = prefixes or shared_prefixes(trace, cache.geometry.hash_block_size)
            signals = session_signals(trace, prefixes, accuracy=self.signal)
        return RustOptions(
            placement=CheckpointPolicy(self.placement), signals=signals, host_bytes=self.host_bytes
        )


def make_variants(
    managers: Sequence[ManagerName],
    placements: Sequence[str],
    vllm: Sequence[VllmOptions],
    signal: float | None = None,
    *,
    hosts: Sequence[int] = (0,),
) -> tuple[Variant, ...]:
    """Return the Rust manager with every placement and host memory, and vLLM's own settings."""
    variants: list[Variant] = []
    for manager in managers:
        if manager is ManagerName.RUST:
            variants += [
                Variant(placement=placement, signal=signal, host_bytes=host)
                for placement in placements
                for host in hosts
            ]
        else:
            variants += [Variant(manager=manager, vllm=one) for one in vllm]
    return tuple(variants)


def request_limits(
    names: Sequence[ManagerName],
    cache: Cache,
    config: EngineConfig,
    *,
    vllm: VllmOptions | None = None,
) -> tuple[RequestLimit, ...]:
    """Return the longest request that each manager can hold; each is made, and dropped."""
    return tuple(
        RequestLimit.of(name, make_manager(name, cache, config, vllm=vllm)) for name in names
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
        limits = (RequestLimit.of(manager_name, manager),)
    on_hit = places.use if places is not None else _ignore
    engine = VirtualEngine(
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


def _ignore(*_: object) -> None:
    pass


OnProgress = Callable[[Variant, int], None]
Runs = list[tuple[Result, Timeline]]


def compare(
    trace: Trace,
    cache: Cache,
    variants: Sequence[Variant],
    config: EngineConfig,
    *,
    beside: Sequence[Variant] = (),
    share: str | None = None,
    sharing: Sharing | None = None,
    prefixes: SharedPrefixes | None = None,
    with_film: bool = False,
    on_progress: OnProgress = lambda *_: None,
) -> Runs:
    """Replay a trace with each variant over caches of the same bytes.

    All serve the same requests: none gets a request over the limit of one, nor over that of a
    variant ``beside`` them. If a manager refuses a
    request that its limit allows, and ``config`` lets requests be left out, all run again without
    it. ``share`` names the cache's size in the results. ``prefixes`` let checkpoints be counted by
    their place. ``on_progress`` gets the number of a variant's finished requests.

    Raises:
        ReplayError: a request that does not fit, where none may be left out.
    """
    settings = {variant.manager: variant.vllm for variant in (*beside, *variants)}
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


def without_worse_settings(runs: Runs) -> Runs:
    """Leave out runs of vLLM's manager but the first, and the one that finds most if it is more."""
    ours = [run for run in runs if run[0].manager != ManagerName.VLLM]
    theirs = [run for run in runs if run[0].manager == ManagerName.VLLM]
    best = max(theirs, key=lambda run: run[0].hit_rate, default=None)
    return [*ours, *theirs[:1], *([best] if best is not None and best is not theirs[0] else [])]


def _named(result: Result, variant: Variant, share: str | None) -> Result:
    named = msgspec.structs.replace(result, variant=variant.name, share=share)
    if variant.manager is not ManagerName.RUST:
        return named
    return msgspec.structs.replace(named, placement=variant.placement)
