"""The data that the page of a replay shows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hybrid_blocks.tools.plan import ArenaPlan
from hybrid_blocks.tools.replay import ManagerName
from hybrid_blocks.tools.replay.cache import Cache
from hybrid_blocks.tools.replay.clock import Timeline
from hybrid_blocks.tools.replay.managers.filmed import (
    MOST_FRAMES,
    NO_CHECKPOINT,
    Film,
    Lookup,
    slabs_of_a_tile,
)
from hybrid_blocks.tools.replay.report import engine_text, figures
from hybrid_blocks.tools.replay.result import Result
from hybrid_blocks.tools.trace import Trace, shared_prefixes
from hybrid_blocks.tools.view.page import OWNER_OF_KIND
from hybrid_blocks.units import human

MOST_POINTS: Final = 2000
CHECKPOINT: Final = "A checkpoint is a state that is kept, and each hit ends at one."

Floats = npt.NDArray[np.float64]

STORIES: Final = {
    "complete": "nothing more could be found",
    "unseen": "what follows had not been computed",
    "attention_evicted": "attention after these tokens was evicted",
    "window_evicted": "a window after these tokens was evicted",
    "alignment": "no later length is a block's border in all groups",
}


@dataclass(frozen=True, slots=True)
class Hits:
    """Requests when they first run, and the tiles that their prompts lie in.

    Attributes:
        columns: ``seconds`` of each; ``words``: which request it is, its tokens found, and the
            story of the hit; ``start``: its first row of ``parts``.
        parts: columns over the tiles of each: ``tile``, its ``pool``, blocks ``found`` and computed
            ``again``, and states of the checkpoint that are ``resumed``.
    """

    columns: dict[str, Any]
    parts: dict[str, npt.NDArray[Any]]

    def sums(self, part: str) -> npt.NDArray[np.int64]:
        """Return the sum of a column of parts over the tiles of each request."""
        before = np.concatenate([[0], np.cumsum(self.parts[part], dtype=np.int64)])
        ends: npt.NDArray[np.int64] = before[np.append(self.columns["start"], len(before) - 1)]
        return np.diff(ends)


@dataclass(frozen=True, slots=True)
class Arena:
    """Slabs over time.

    Attributes:
        seconds: of each frame.
        tiles: columns over frames and tiles, frame by frame: ``codes``, ``live`` and ``used`` of
            `Frame`.
        count: tiles of a frame.
        cuts: blocks that each pool cuts a slab into.
        owners: what each code means; empty where a pool has no block of a running request.
        tile: what a tile is.
        hits: of requests, where tiles light up.
    """

    seconds: Floats
    tiles: dict[str, npt.NDArray[Any]]
    count: int
    cuts: tuple[int, ...]
    owners: tuple[str, ...]
    tile: str
    hits: Hits


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
        has_host: whether host memory lies below the device.
    """

    name: str
    figures: dict[str, str]
    hit_rate: str
    samples: dict[str, Floats]
    requests: dict[str, Any]
    arena: Arena | None
    has_host: bool


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
        lacks_vllm=_lacks_vllm([result for result, _ in runs]),
        runs=tuple(_run(trace, cache, seen, result, timeline) for result, timeline in runs),
    )


def _lacks_vllm(results: Sequence[Result]) -> bool:
    """Return whether vLLM's manager, which needs a model, was left out."""
    return results[0].model is not None and not any(
        result.manager == ManagerName.VLLM for result in results
    )


def _run(
    trace: Trace, cache: Cache, seen: npt.NDArray[np.int64], result: Result, timeline: Timeline
) -> Run:
    requests = _requests(trace, seen, timeline)
    return Run(
        name=result.variant or result.manager,
        figures=figures(result),
        hit_rate=f"{result.hit_rate:.1%}",
        samples=_samples(result, timeline),
        requests=requests,
        arena=None if timeline.film is None else _arena(cache, timeline.film, requests),
        has_host=result.host_tokens is not None,
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


def _arena(cache: Cache, film: Film, requests: dict[str, Any]) -> Arena:
    geometry = film.geometry
    kept = film.frames.kept
    frames = [kept[at] for at in np.unique(np.linspace(0, len(kept) - 1, MOST_FRAMES).astype(int))]
    every = slabs_of_a_tile(geometry.usable_slabs)
    owners, cut = ["not used yet"], list[str]()
    for pool, blocks in enumerate(geometry.pools):
        groups = [group for group in geometry.groups if group.pool == pool]
        if not groups:
            owners += ["", "checkpoint"]
            cut.append(f"Of checkpoints, kept in fewer bytes, it holds {blocks}.")
            continue
        held = {OWNER_OF_KIND[group.kind] for group in groups}
        name = ", ".join(sorted(held))
        left = f"{name}, kept or free"
        if held == {"states"}:
            left = "checkpoint" if groups[0].kept_pool is None else "free, last of states"
        owners += [f"{name} of running requests", left]
        cut += _cut(name, blocks, groups[0].block_tokens, are_states=held == {"states"})
    unit = "block" if cache.model is None else f"slab of {human(geometry.slab_bytes)}"
    shown = "." if every == 1 else f"; one of {every} is shown."
    most = max(geometry.pools)
    columns = {
        "codes": np.stack([frame.slabs for frame in frames]).ravel(),
        "live": _counts([frame.live for frame in frames], most),
        "used": _counts([frame.used for frame in frames], most),
    }
    return Arena(
        seconds=np.array([frame.seconds for frame in frames]),
        tiles=columns,
        count=len(frames[0].slabs),
        cuts=tuple(geometry.pools),
        owners=tuple(owners),
        tile=" ".join([f"A large square is one {unit}{shown}", *cut]),
        hits=_hits(film, requests, geometry, every),
    )


def _cut(name: str, blocks: int, tokens: int, *, are_states: bool) -> Iterator[str]:
    """Say how a pool cuts a slab into ``blocks``."""
    if are_states and blocks == 1:
        yield f"One state fills it. {CHECKPOINT}"
    elif are_states:
        yield f"{blocks} states share it. {CHECKPOINT}"
    elif blocks > 1:
        yield f"Of {name} it takes {blocks} blocks, each of {tokens} tokens: the small squares."


def _counts(frames: Sequence[npt.NDArray[np.uint16]], most: int) -> npt.NDArray[Any]:
    """Put counts of blocks, ``most`` at most, one after another in as few bytes as they need."""
    return np.stack(frames).ravel().astype(np.min_scalar_type(most))


def _hits(film: Film, requests: dict[str, Any], geometry: ArenaPlan, every: int) -> Hits:
    """Cut the prompts of a film into parts that are found and computed again, tile by tile."""
    row_of = {request: row for row, request in enumerate(requests["request"].tolist())}
    hits = sorted(film.hits.kept, key=lambda hit: row_of[hit.request])
    rows = [row_of[hit.request] for hit in hits]
    start, parts = [0], [np.zeros((5, 0), dtype=int)]
    for hit, row in zip(hits, rows, strict=True):
        blocks = -(-int(requests["again"][row] - hit.tokens) // geometry.hash_block_size)
        places = (hit.found, hit.computed[: max(blocks, 0)], hit.checkpoint)
        pools = np.zeros(geometry.num_slabs, dtype=int)
        for some in places:
            pools[some[:, 0]] = some[:, 1]
        counts = [np.bincount(some[:, 0], minlength=geometry.num_slabs) for some in places]
        columns = np.stack([pools, *counts])[:, 1::every]
        tiles = np.flatnonzero(columns[1:].any(axis=0))
        parts.append(np.vstack([tiles, columns[:, tiles]]))
        start.append(start[-1] + len(tiles))
    tile, pool, found, again, resumed = np.hstack(parts)
    return Hits(
        columns={
            "seconds": requests["seconds"][rows],
            "words": [_words(requests, row) for row in rows],
            "start": np.array(start[:-1], dtype=np.int32),
        },
        parts={
            "tile": tile.astype(np.uint16),
            "pool": pool.astype(np.uint8),
            "found": found.astype(np.uint16),
            "again": again.astype(np.uint16),
            "resumed": resumed.astype(np.uint8),
        },
    )


def _words(requests: dict[str, Any], row: int) -> str:
    request, prompt, hit, again = (
        int(requests[name][row]) for name in ("request", "prompt", "hit", "again")
    )
    words = f"Request {request:,} finds {hit:,} of {prompt:,} tokens"
    if again > hit:
        words += f" and computes {again - hit:,} again"
    return f"{words}: {requests['story'][row]}"
