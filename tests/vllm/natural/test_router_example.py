"""The router of the examples reads vLLM's own events, and counts what the manager finds."""

import runpy
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest
from hybrid_blocks.vllm.level import EVENTS, Level
from installed import installed
from vllm.distributed.kv_events import KVEventBatch
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from .test_fake_worker import MAX_MODEL_LEN
from .test_usable_events import BLOCK, Life

ROOT = Path(__file__).parents[3]
NAMES = ("one", "other")
NUM_SESSIONS = 24
MOST_AT_ONCE = 4


def test_the_router_counts_as_an_index_of_vllms_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    replica: Any = runpy.run_path(str(ROOT / "examples/router.py"))["Replica"]()
    monkeypatch.setenv(EVENTS, "usable")
    with installed(Level.NATURAL):
        life = Life("full-state", 1, is_async=True)
        read = life.index.read

        def both(events: Any) -> None:
            events = list(events)
            read(events)
            replica.read(msgspec.msgpack.encode(KVEventBatch(ts=0.0, events=events)))

        life.index.read = both  # type: ignore[method-assign]
        for step in range(60):
            life.step()
            if step % 3 == 0:
                life.compare()
            for tokens, request in life.told.items():
                hashes = map(maybe_convert_block_hash, request.block_hashes)
                assert replica.count(tokens) == life.index.count(hashes)
        assert life.num_hits > 0
        assert (life.num_above, life.num_below) == (0, 0)


class Served(NamedTuple):
    """Prompt tokens that two replicas found, and requests that the other one would have served
    with more."""

    num_found: int
    num_astray: int


def served(name: str, seed: int) -> Served:
    """Serve sessions of several turns by two replicas behind the router."""
    router: Any = runpy.run_path(str(ROOT / "examples/router.py"))["Router"](NAMES)
    draw = Random(seed)
    replicas = {}
    for place, replica in router.replicas.items():
        life = replicas[place] = Life(name, seed)

        def read(events: Any, replica: Any = replica) -> None:
            replica.read(msgspec.msgpack.encode(KVEventBatch(ts=0.0, events=list(events))))

        life.index.read = read  # type: ignore[method-assign]
    begins = [draw.choices(range(50), k=draw.choice((9, 21, 34))) for _ in range(4)]
    # An odd length: a hit leaves the last token to be computed, so that no whole block is cut.
    sessions = [[*draw.choice(begins), *draw.choices(range(50), k=8)] for _ in range(NUM_SESSIONS)]
    running: dict[int, Any] = {}
    num_astray = 0
    while sessions or running:
        while sessions and len(running) < MOST_AT_ONCE:
            tokens = sessions.pop(draw.randrange(len(sessions)))
            tokens += [7] * (len(tokens) % BLOCK == 0)
            place = router.choose(tokens)
            request = replicas[place].engine.add(tokens, draw.choice((3, 9, 14)))
            found = {each: life.found(request) for each, life in replicas.items()}
            num_astray += found[place] < max(found.values())
            running[id(request)] = request
        for life in replicas.values():
            life.engine.step()
            life.manager.take_events()
        for number, request in list(running.items()):
            if request.is_finished():
                del running[number]
                more = [*request.all_token_ids, *draw.choices(range(50), k=draw.choice((2, 7)))]
                if len(more) + 20 < MAX_MODEL_LEN:
                    sessions.append(more)
    return Served(sum(life.engine.num_cached_tokens for life in replicas.values()), num_astray)


@pytest.mark.parametrize("name", ["full-state", "full-3-states"])
def test_sessions_find_more_by_usable_events(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, list[Served]] = {}
    for events in ("usable", "all"):
        monkeypatch.setenv(EVENTS, events)
        with installed(Level.NATURAL):
            found[events] = [served(name, seed) for seed in range(4)]
    tokens = {events: sum(one.num_found for one in found[events]) for events in found}
    astray = {events: sum(one.num_astray for one in found[events]) for events in found}
    assert tokens["usable"] >= tokens["all"] > 0
    assert astray["usable"] < astray["all"]
