"""One candidate: whether it serves the trace, and what binds."""

from dataclasses import replace
from functools import partial

import msgspec

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.model import PlanError
from hybrid_blocks.replay import Cache, Engine, EngineConfig, ManagerName, ReplayError, make_manager
from hybrid_blocks.replay.managers.rust import RustOptions
from hybrid_blocks.replay.variant import Variant
from hybrid_blocks.sizing.binds import COMPUTE, what_binds
from hybrid_blocks.sizing.candidate import Candidate
from hybrid_blocks.sizing.errors import SizingError
from hybrid_blocks.sizing.floor import Floor
from hybrid_blocks.sizing.question import Question
from hybrid_blocks.sizing.replicas import share_out
from hybrid_blocks.sizing.watch import LostError, Watch
from hybrid_blocks.trace import Trace


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a candidate; the field names are those of ``--json``.

    Attributes:
        candidate: the cards.
        serves: whether all targets are kept.
        memory_bytes: free memory of each card, estimated; None if nothing is left.
        measured: seconds of each target, by its name; none if the replay did not end.
        missed: the target that is missed, or the one that ended the replay.
        binds: what requests waited for, of the replica with most steps; None if nothing ran.
        sure: where the clock comes from.
        steps: steps that were replayed.
        why_not: why nothing ran.
    """

    candidate: Candidate
    serves: bool = False
    memory_bytes: int | None = None
    measured: dict[str, float] = {}
    missed: str | None = None
    binds: str | None = None
    sure: str | None = None
    steps: int = 0
    why_not: str | None = None


def evaluate(question: Question, candidate: Candidate, *, is_whole: bool = False) -> Row:
    """Serve the trace on a candidate; with ``is_whole`` to its end even if a target is missed.

    Raises:
        SizingError: the speed of the card or the size of the model is not known.

    """
    try:
        cache = question.cache(candidate)
    except (PlanError, ReplayError) as error:
        return Row(candidate=candidate, why_not=str(error))
    step_time, sure = question.clock(candidate, cache)
    told = Row(candidate=candidate, memory_bytes=cache.memory_bytes, sure=sure)
    config = replace(question.config, step_time=step_time)
    if not is_whole:
        floor = Floor(
            question.trace,
            question.prefixes,
            cache.geometry.hash_block_size,
            step_time,
            config.max_num_batched_tokens,
        )
        if (hopeless := floor.missed(question.targets)) is not None:
            return msgspec.structs.replace(told, missed=hopeless.name, binds=COMPUTE)
    try:
        return _replay(question, cache, config, told, is_whole=is_whole)
    except SizingError:
        raise
    except (ReplayError, InvalidArgumentError) as error:
        return msgspec.structs.replace(told, why_not=str(error))


def _replay(
    question: Question, cache: Cache, config: EngineConfig, told: Row, *, is_whole: bool
) -> Row:
    engines: list[Engine] = []
    missed: str | None
    measured: dict[str, float] = {}
    watch = Watch(question.targets, question.trace.output_tokens)
    try:
        for part in share_out(question.trace, told.candidate.replicas):
            options = Variant().options(part, cache, config)
            engines.append(engine := _engine(part, cache, config, options, told.candidate))
            engine.run(_ignore if is_whole else partial(watch.look, engine))
            watch.end(engine)
    except LostError as lost:
        missed = lost.target.name
    else:
        latencies = [engine.latencies for engine in engines]
        measured = {target.name: target.measure(*latencies) for target in question.targets}
        missed = next(
            (one.name for one in question.targets if measured[one.name] >= one.seconds), None
        )
    busiest = max(engines, key=lambda engine: len(engine.meter.steps))
    return msgspec.structs.replace(
        told,
        serves=missed is None,
        measured=measured,
        missed=missed,
        binds=what_binds(busiest, cache),
        steps=sum(len(engine.meter.steps) for engine in engines),
    )


def _engine(
    trace: Trace, cache: Cache, config: EngineConfig, options: RustOptions, candidate: Candidate
) -> Engine:
    if candidate.host_bytes:
        from hybrid_blocks.sizing.hosted import make_hosted  # noqa: PLC0415 - not in every build

        return make_hosted(trace, cache, config, options, candidate.host_bytes)
    return Engine(trace, make_manager(ManagerName.RUST, cache, config, rust=options), cache, config)


def _ignore(_: int) -> None:
    pass
