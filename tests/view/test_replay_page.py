"""The page of ``replay --html``: its figures are those of ``replay``, and so are its stories."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import hybrid_blocks
import msgspec
import numpy as np
import pytest
from command import answer
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.replay import EngineConfig, ManagerName, block_cache, model_cache
from hybrid_blocks.tools.replay.cache import Cache
from hybrid_blocks.tools.replay.managers.filmed import MOST_FRAMES, MOST_TILES, Lookup, Thinned
from hybrid_blocks.tools.replay.run import Runs, Variant, compare
from hybrid_blocks.tools.trace import Trace, generate_workload, measure_sharing
from hybrid_blocks.tools.view.page import html_of
from hybrid_blocks.tools.view.replay_page import ReplayPage, head
from hybrid_blocks.tools.view.replay_picture import make_replay_picture, story
from loads import generate
from scripts import Elements

ASKED = ("--workload", "tools", "--limit", 40, "--model", "Qwen3.5-27B", "--memory", "8GiB")
MOST_BYTES = 10_000_000


@pytest.fixture(scope="module")
def case() -> tuple[Trace, Cache, Runs]:
    """Requests that find no checkpoint, in a memory that is soon full."""
    cache = model_cache("Qwen3.5-27B", "8GiB", Deployment(in_flight_batches=1))
    trace = generate_workload("tools", 0, 120, 16)
    config, variants = EngineConfig(max_num_seqs=8), [Variant(), Variant(placement="none")]
    sharing = measure_sharing(trace, cache.geometry.hash_block_size)
    runs = compare(trace, cache, variants, config, sharing=sharing, with_film=True)
    return trace, cache, runs


def test_a_film_changes_nothing(case: tuple[Trace, Cache, Runs]) -> None:
    trace, cache, runs = case
    ((plain, _),) = compare(trace, cache, [Variant()], EngineConfig(max_num_seqs=8))
    filmed = runs[0][0]
    for field in plain.__struct_fields__:
        is_time = field.startswith("manager_") or field == "wall_seconds"
        if not is_time and field != "sequential_hit_rate":
            assert getattr(filmed, field) == getattr(plain, field), field


def test_a_film_says_of_each_request_what_ended_its_hit(case: tuple[Trace, Cache, Runs]) -> None:
    trace, _, runs = case
    for result, timeline in runs:
        assert timeline.film is not None
        lookups = timeline.film.lookups
        assert set(lookups) == set(timeline.admitted) == set(range(len(trace)))
        ended = [lookup.limit for lookup in lookups.values()]
        for limit in set(ended):
            assert ended.count(limit) == getattr(result, f"limit_{limit}")
        assert ended.count("no_checkpoint") > 0
        hits = dict(zip(timeline.admitted, timeline.hit_tokens, strict=True))
        for request, lookup in lookups.items():
            if lookup.limit == "no_checkpoint":
                assert lookup.attention_tokens is not None
                assert hits[request] < lookup.attention_tokens < trace.prompt_tokens[request]
            else:
                assert lookup.attention_tokens is None


def test_frames_show_who_holds_each_slab(case: tuple[Trace, Cache, Runs]) -> None:
    _, cache, runs = case
    cuts = np.array(cache.geometry.pools)
    for result, timeline in runs:
        assert timeline.film is not None
        frames = timeline.film.frames.kept
        assert 10 < len(frames) <= 2 * MOST_FRAMES
        used = dict(zip(timeline.seconds, timeline.used_blocks, strict=True))
        held_for_copies = []
        for frame in frames:
            assert len(frame.slabs) == cache.geometry.usable_slabs == result.blocks_total
            assert np.array_equal(frame.live > 0, frame.slabs % 2 == 1)
            assert np.all(frame.live <= frame.used)
            assert np.all(frame.used <= cuts[(np.maximum(frame.slabs, 1) - 1) // 2])
            held_for_copies.append(used[frame.seconds] - int(np.count_nonzero(frame.live)))
        # The source of a copy has an owner until the next step, and maybe no request holds it.
        assert min(held_for_copies) == 0
        assert np.median(held_for_copies) == 0
        assert max(held_for_copies) <= 8 * len(cache.geometry.groups)
    learned = runs[0][1].film
    assert learned is not None
    assert {2, 4} < set(learned.frames.kept[-1].slabs.tolist())
    filling = [np.sum(frame.live[frame.slabs == 1]) for frame in learned.frames.kept]
    assert max(filling) > 20 * min(filling)


def test_a_film_says_where_each_hit_lies(case: tuple[Trace, Cache, Runs]) -> None:
    trace, cache, runs = case
    states = sum(group.slots_per_request is not None for group in cache.geometry.groups)
    size = cache.geometry.hash_block_size
    for _, timeline in runs:
        assert timeline.film is not None
        film = timeline.film
        found = dict(zip(timeline.admitted, timeline.hit_tokens, strict=True))
        times = dict(zip(timeline.admitted, timeline.admitted_at, strict=True))
        assert {hit.request for hit in film.hits.kept} == set(range(len(trace)))
        seconds = [frame.seconds for frame in film.frames.kept]
        assert len(seconds) == len(timeline.seconds)  # else a slab may change hands unseen
        for hit in film.hits.kept:
            assert hit.tokens == found[hit.request]
            assert len(hit.found) * size == hit.tokens
            assert len(hit.checkpoint) == (states if hit.tokens else 0)
            blocks = -(-trace.prompt_tokens[hit.request] // size)
            assert len(hit.found) + len(hit.computed) == blocks
            frame = max(int(np.searchsorted(np.array(seconds), times[hit.request])), 1) - 1
            before = film.frames.kept[frame].slabs
            assert set(before[hit.found[:, 0] - 1].tolist()) <= {1, 2}
            assert set(before[hit.checkpoint[:, 0] - 1].tolist()) <= {3, 4}


def test_checkpoints_in_fewer_bytes_have_slabs_of_their_own() -> None:
    cache = model_cache("Qwen3.5-27B", "8GiB", Deployment(in_flight_batches=1))
    trace = generate_workload("tools", 0, 60, 16)
    variants = [Variant(placement="learned/format=int8")]
    runs = compare(trace, cache, variants, EngineConfig(max_num_seqs=8), with_film=True)
    film = runs[0][1].film
    assert film is not None
    assert len(film.geometry.pools) == len(cache.geometry.pools) + 1
    kept = len(cache.geometry.pools)
    seen = np.concatenate([frame.slabs for frame in film.frames.kept])
    assert 2 * kept + 2 in seen
    assert 2 * kept + 1 not in seen
    resumed = np.concatenate([hit.checkpoint for hit in film.hits.kept])
    assert kept in resumed[:, 1]
    (run,) = make_replay_picture(trace, cache, runs).runs
    assert run.arena is not None
    assert run.arena.cuts == film.geometry.pools
    assert run.arena.owners[2 * kept + 1 :] == ("", "checkpoint")
    told = f"Of checkpoints, kept in fewer bytes, it holds {run.arena.cuts[kept]}."
    assert told in run.arena.tile


def test_a_page_holds_the_figures_of_the_replay(case: tuple[Trace, Cache, Runs]) -> None:
    trace, cache, runs = case
    picture = make_replay_picture(trace, cache, runs)
    for one, (result, timeline) in zip(picture.runs, runs, strict=True):
        assert one.hit_rate == f"{result.hit_rate:.1%}"
        assert one.requests["share"][-1] == pytest.approx(100 * result.hit_rate)
        assert one.requests["hit"].sum() == result.hit_tokens
        assert one.requests["prompt"].sum() == result.prompt_tokens
        assert one.samples["running"].max() == result.peak_running
        assert np.all(np.diff(one.requests["seconds"]) >= 0)
        assert one.requests["seconds"][-1] <= picture.seconds
        assert len(one.requests["story"]) == len(timeline.admitted)
        assert one.arena is not None
        assert one.arena.tiles["codes"].max() < len(one.arena.owners)
        assert one.arena.count <= MOST_TILES
        assert len(one.arena.tiles["live"]) == one.arena.count * len(one.arena.seconds)
    html = html_of(ReplayPage(picture).document())
    for text in (picture.runs[0].hit_rate, picture.runs[1].figures["peak running"]):
        assert text in html
    assert "attention was there for" in html


def test_a_page_lights_blocks_found_and_computed_again(case: tuple[Trace, Cache, Runs]) -> None:
    trace, cache, runs = case
    size = cache.geometry.hash_block_size
    for run in make_replay_picture(trace, cache, runs).runs:
        assert run.arena is not None
        hits, parts = run.arena.hits.columns, run.arena.hits.parts
        rows = [int(words.split()[1]) for words in hits["words"]]
        assert rows == run.requests["request"].tolist()
        lit = {name: run.arena.hits.sums(name) for name in ("found", "again")}
        assert np.array_equal(size * lit["found"], run.requests["hit"])
        again = run.requests["again"] - run.requests["hit"]
        assert np.array_equal(lit["again"], -(-again // size))
        assert again.max() > 0
        assert parts["tile"].max() < run.arena.count
        missed = int(again.argmax())
        hit, prompt = run.requests["hit"][missed], run.requests["prompt"][missed]
        told = f"finds {hit:,} of {prompt:,} tokens and computes {again[missed]:,} again: attention"
        assert told in hits["words"][missed]


def test_a_long_film_keeps_things_spread_over_it() -> None:
    thinned = Thinned[int]()
    for thing in range(10_000):
        if thinned.is_time():
            thinned.add(thing)
    assert MOST_FRAMES <= len(thinned.kept) <= 2 * MOST_FRAMES
    assert len(set(np.diff(thinned.kept).tolist())) == 1


def test_a_miss_says_how_far_attention_and_states_reached() -> None:
    missed = Lookup("no_checkpoint", 9216)
    told = "attention was there for 9,216 tokens, the last state at 6,272"
    assert story(missed, 6272, 9216) == told
    assert story(missed, 0, 9216) == "attention was there for 9,216 tokens, but no state"
    assert story(Lookup("unseen", None), 512, 512) == "what follows had not been computed"
    assert story(None, 0, 1024) == "earlier requests of the trace have 1,024 of its tokens"


def test_the_command_writes_a_page_that_needs_no_network(tmp_path: Path) -> None:
    page = tmp_path / "replay.html"
    figures = tmp_path / "figures.json"
    answer("replay", *ASKED, "--html", page, "--json", figures)
    html = page.read_text()
    result = json.loads(figures.read_text())
    assert f"<b>{result['hit_rate']:.1%}</b> of prompt tokens found" in json_text(html)
    elements = Elements(html)
    assert not elements.fetched
    assert "default-src 'none'" in elements.policies[0]
    made_by = f"hybrid-blocks {hybrid_blocks.__version__}: <code>hybrid-blocks replay --"
    assert made_by in json_text(html)
    assert "Manager rust is the core of this package" in html


def json_text(html: str) -> str:
    """The texts of a page, without the marks that keep them from being HTML."""
    found = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', html, re.DOTALL)
    assert found
    return found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def test_a_page_says_that_vllm_was_not_replayed(case: tuple[Trace, Cache, Runs]) -> None:
    trace, cache, runs = case
    missing = "vLLM was not replayed: <code>--manager rust --manager vllm</code>"
    alone = head(make_replay_picture(trace, cache, runs[:1]))
    assert alone.count('<div class="side">') == 2
    assert missing in alone
    assert "120 requests, " in alone
    several = head(make_replay_picture(trace, cache, runs))
    assert several.count('<div class="side">') == 2
    assert missing in several
    result, timeline = runs[0]
    vllm = msgspec.structs.replace(result, manager=str(ManagerName.VLLM), variant="vllm")
    both = head(make_replay_picture(trace, cache, [runs[0], (vllm, timeline)]))
    assert both.count('<div class="side">') == 2
    assert missing not in both
    # A cache of blocks has no model whose plan vLLM could make.
    blocks = [(msgspec.structs.replace(result, model=None), timeline)]
    assert missing not in head(make_replay_picture(trace, cache, blocks))


def test_a_page_without_a_film_has_no_arena(case: tuple[Trace, Cache, Runs]) -> None:
    trace, cache, runs = case
    result, timeline = runs[0]
    other = msgspec.structs.replace(
        result, manager=str(ManagerName.VLLM), variant="vllm default", checkpoints=None
    )
    picture = make_replay_picture(trace, cache, [runs[0], (other, replace(timeline, film=None))])
    assert picture.runs[1].arena is None
    assert "earlier requests of the trace have" in picture.runs[1].requests["story"][5]
    html = html_of(ReplayPage(picture).document())
    assert "vllm default has no map: in vLLM all groups share" in html


def test_ten_thousand_requests_stay_a_small_file(case: tuple[Trace, Cache, Runs]) -> None:
    trace, cache, runs = case
    picture = make_replay_picture(trace, cache, runs)
    many = 10_000 // len(trace) + 1

    def tiled(columns: dict[str, Any]) -> dict[str, Any]:
        return {
            name: values * many if isinstance(values, list) else np.tile(values, many)
            for name, values in columns.items()
        }

    def resized(columns: dict[str, Any], size: int) -> dict[str, Any]:
        return {name: np.resize(values, size) for name, values in columns.items()}

    larger = []
    for one in picture.runs:
        assert one.arena is not None
        hits = one.arena.hits
        arena = replace(
            one.arena,
            count=MOST_TILES,
            tiles=resized(one.arena.tiles, MOST_FRAMES * MOST_TILES),
            hits=replace(hits, columns=tiled(hits.columns), parts=tiled(hits.parts)),
            seconds=np.resize(one.arena.seconds, MOST_FRAMES),
        )
        samples = resized(one.samples, 2000)
        larger.append(replace(one, requests=tiled(one.requests), samples=samples, arena=arena))
    html = html_of(ReplayPage(replace(picture, runs=tuple(larger))).document())
    assert len(html.encode()) < MOST_BYTES


@pytest.mark.vllm
def test_vllms_own_manager_has_its_column() -> None:
    cache = model_cache("Qwen3.5-27B", "8GiB", Deployment(in_flight_batches=1))
    trace = generate_workload("tools", 0, 40, 16)
    variants = [Variant(), Variant(manager=ManagerName.VLLM)]
    runs = compare(trace, cache, variants, EngineConfig(max_num_seqs=8), with_film=True)
    picture = make_replay_picture(trace, cache, runs)
    ours, theirs = picture.runs
    assert not picture.lacks_vllm
    assert (ours.arena is None, theirs.arena is None) == (False, True)
    for one, (result, _) in zip(picture.runs, runs, strict=True):
        assert one.requests["hit"].sum() == result.hit_tokens
        assert one.requests["prompt"].sum() == trace.prompt_tokens.sum()
        assert one.samples["running"].max() == result.peak_running
    assert theirs.requests["hit"].sum() > 0
    words = head(picture)
    assert f"<b>{ours.hit_rate}</b>" in words
    assert f"vllm<br><b>{theirs.hit_rate}</b>" in words.replace(theirs.name, "vllm")
    assert f"{theirs.name}: running" in html_of(ReplayPage(picture).document())


def test_a_cache_of_blocks_has_no_bytes_to_name() -> None:
    cache = block_cache(900, 16)
    trace = generate("single", 0, 5)
    runs = compare(trace, cache, [Variant()], EngineConfig(), with_film=True)
    picture = make_replay_picture(trace, cache, runs)
    arena = picture.runs[0].arena
    assert arena is not None
    assert arena.tile == "A large square is one block."
