"""The data that the page of a replay shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hybrid_blocks.replay import ManagerName
from hybrid_blocks.replay.cache import Cache
from hybrid_blocks.replay.clock import Timeline
from hybrid_blocks.replay.film import MOST_FRAMES, NO_CHECKPOINT, Film, Lookup
from hybrid_blocks.replay.report import engine_text, figures
from hybrid_blocks.replay.result import Result
from hybrid_blocks.trace import Trace, shared_prefixes
from hybrid_blocks.units import human
from hybrid_blocks.view.held import OWNERS

MOST_POINTS: Final = 2000
MOST_TILES: Final = 1000

Floats = npt.NDArray[np.float64]

STORIES: Final = {
    "complete": "nothing more could be found",
    "unseen": "what follows had not been computed",
    "attention_evicted": "attention after these tokens was evicted",
    "window_evicted": "a window after these tokens was evicted",
    "alignment": "no later length is a block's border in all groups",
}


@dataclass(frozen=True, slots=True)
class Arena:
    """Slabs over time.

    Attributes:
        seconds: of each frame.
        codes: what each tile shows in each frame, see `Film`; shape ``[frames, tiles]``.
        owners: what each code means; empty for those that no pool has.
        tile: what a tile is.
    """

    seconds: Floats
    codes: npt.NDArray[np.uint8]
    owners: tuple[str, ...]
    tile: str


@dataclass(frozen=True, slots=True)
class Run:
    """One manager's replay.

    Attributes:
        name: of the manager and its settings.
        figures: the rows of the table of ``replay``.
        hit_rate: share of prompt tokens that were found, as the table has it.
        samples: ``seconds``, ``use`` of the pool, ``running`` and ``waiting`` requests, thinned.
        requests: columns over requests in the order of admission. ``hit`` of ``prompt`` tokens were
            found, and earlier requests have the first ``again``. ``share`` of all prompt tokens was
            found so far.
        arena: slabs over time, where there is a film.
    """

    name: str
    figures: dict[str, str]
    hit_rate: str
    samples: dict[str, Floats]
    requests: dict[str, Any]
    arena: Arena | None


@dataclass(frozen=True, slots=True)
class ReplayPicture:
    """Everything that the page of a replay draws.

    Attributes:
        trace: its name.
        engine: which engine served it.
        seconds: the longest of the runs.
        bound: share of prompt tokens found without evictions.
        lacks_vllm: vLLM's manager could have run too, but did not.
        runs: one for each manager.
    """

    trace: str
    engine: str
    seconds: float
    bound: float | None
    lacks_vllm: bool
    runs: tuple[Run, ...]


def make_replay_picture(
    trace: Trace, cache: Cache, runs: Sequence[tuple[Result, Timeline]]
) -> ReplayPicture:
    """Collect what a page shows of replays of one trace."""
    size, first = cache.geometry.hash_block_size, runs[0][0]
    seen = np.zeros(len(trace), dtype=np.int64)
    if first.sequential_hit_rate is not None:  # else the trace is too large to be compared
        seen = shared_prefixes(trace, size).seen * size
    return ReplayPicture(
        trace=first.trace,
        engine=engine_text(first),
        seconds=max(result.virtual_seconds for result, _ in runs),
        bound=first.sequential_hit_rate,
        lacks_vllm=lacks_vllm([result for result, _ in runs]),
        runs=tuple(_run(trace, cache, seen, result, timeline) for result, timeline in runs),
    )


def lacks_vllm(results: Sequence[Result]) -> bool:
    """Return whether vLLM's manager, which needs a model, was left out."""
    return results[0].model is not None and not any(
        result.manager == ManagerName.VLLM for result in results
    )


def _run(
    trace: Trace, cache: Cache, seen: npt.NDArray[np.int64], result: Result, timeline: Timeline
) -> Run:
    return Run(
        name=result.variant or result.manager,
        figures=figures(result),
        hit_rate=f"{result.hit_rate:.1%}",
        samples=_samples(result, timeline),
        requests=_requests(trace, seen, timeline),
        arena=None if timeline.film is None else _arena(cache, timeline.film),
    )


def _samples(result: Result, timeline: Timeline) -> dict[str, Floats]:
    last = len(timeline.seconds) - 1
    every = np.unique(np.linspace(0, max(last, 0), MOST_POINTS).astype(int))[: last + 1]
    return {
        "seconds": np.array(timeline.seconds)[every],
        "use": 100 * np.array(timeline.used_blocks)[every] / result.blocks_total,
        "running": np.array(timeline.running, dtype=float)[every],
        "waiting": np.array(timeline.waiting, dtype=float)[every],
    }


def _requests(trace: Trace, seen: npt.NDArray[np.int64], timeline: Timeline) -> dict[str, Any]:
    admitted = np.array(timeline.admitted, dtype=np.int64)
    hit = np.array(timeline.hit_tokens, dtype=np.int64)
    prompt = trace.prompt_tokens.astype(np.int64)[admitted]
    computed = seen[admitted]
    lookups = {} if timeline.film is None else timeline.film.lookups
    return {
        "seconds": _spread(np.array(timeline.admitted_at)),
        "request": admitted.astype(np.int32),
        "prompt": prompt.astype(np.int32),
        "hit": hit.astype(np.int32),
        "again": np.maximum(computed, hit).astype(np.int32),
        "share": 100 * np.cumsum(hit) / np.maximum(np.cumsum(prompt), 1),
        "story": [
            story(lookups.get(request), found, known)
            for request, found, known in zip(
                admitted.tolist(), hit.tolist(), computed.tolist(), strict=True
            )
        ],
    }


def story(lookup: Lookup | None, hit: int, seen: int) -> str:
    """Say what ended a hit of ``hit`` tokens; earlier requests of the trace had ``seen``."""
    if lookup is None:
        return f"earlier requests of the trace have {seen:,} of its tokens"
    if lookup.limit == NO_CHECKPOINT and lookup.attention_tokens is not None:
        return f"attention was there for {lookup.attention_tokens:,} tokens, {_last_state(hit)}"
    return STORIES.get(lookup.limit, lookup.limit)


def _last_state(hit: int) -> str:
    return f"the last state at {hit:,}" if hit else "but no state"


def _spread(seconds: Floats) -> Floats:
    """Put requests of one step next to each other, before the step that admits the next one."""
    times, first, counts = np.unique(seconds, return_index=True, return_counts=True)
    gaps = np.diff(times, append=times[-1:])
    place = np.arange(len(seconds)) - np.repeat(first, counts)
    spread: Floats = seconds + np.repeat(gaps, counts) * place / np.repeat(counts, counts)
    return spread


def _arena(cache: Cache, film: Film) -> Arena:
    geometry = cache.geometry
    frames = np.unique(np.linspace(0, len(film.slabs) - 1, MOST_FRAMES).astype(int))
    every = -(-geometry.usable_slabs // MOST_TILES)
    owners = ["not used yet"]
    for pool in range(len(geometry.pools)):
        held = {OWNERS[group.kind] for group in geometry.groups if group.pool == pool}
        name = ", ".join(sorted(held))
        kept = "checkpoint" if held == {"states"} else f"{name}, kept or free"
        owners += [f"{name} of running requests", kept]
    unit = "block" if cache.model is None else f"slab of {human(geometry.slab_bytes)}"
    shown = "" if every == 1 else f"; one of {every} is shown"
    return Arena(
        seconds=np.array(film.seconds)[frames],
        codes=np.stack([film.slabs[frame][::every] for frame in frames]),
        owners=tuple(owners),
        tile=f"A tile is one {unit}{shown}",
    )
