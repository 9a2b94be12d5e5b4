"""An index of usable events counts for each prompt what the manager would find."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import takewhile
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.tools.profile.engine import make_hasher, scheduler_over
from hybrid_blocks.vllm.level import EVENTS, Level, publishes_usable_only
from hybrid_blocks.vllm.natural.usable_events import UsableEvents
from installed import installed
from vllm.config import KVEventsConfig
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import Request

from .fake_worker import FakeWorker
from .fake_worker_engine import FakeEngine, unowned_units
from .test_fake_worker import MAX_MODEL_LEN, MIXES

BLOCK = 4
group_metadata = EngineCore.get_kv_cache_group_metadata


# --- hand-made streams ------------------------------------------------------


def stored(*hashes: bytes, after: bytes | None = None, group: int = 0, **more: Any) -> BlockStored:
    fields: dict[str, Any] = {"lora_id": None, "medium": "GPU", "lora_name": None}
    parts: Any = {"block_hashes": list(hashes), "parent_block_hash": after, "group_idx": group}
    parts |= {"token_ids": [one for key in hashes for one in key[:1] * 4], "block_size": 4}
    parts |= {"extra_keys": [(key.decode(),) for key in hashes]}
    return BlockStored(**parts, **fields | more)


def removed(*hashes: bytes, group: int = 0) -> BlockRemoved:
    return BlockRemoved(block_hashes=list(hashes), medium="GPU", group_idx=group)


def attention(events: Iterable[Any]) -> list[Any]:
    return [event for event in events if getattr(event, "group_idx", None) in (0, None)]


def one_state() -> UsableEvents:
    return UsableEvents([0], [1], {})


def test_attention_is_told_up_to_a_checkpoint_with_the_fields_of_its_own_event() -> None:
    usable = one_state()
    plain = stored(b"a", b"b", session_id="s", lora_name="l")
    assert usable.turn([plain, stored(b"c", after=b"b")]) == []
    state = stored(b"b", after=b"a", group=1)
    assert usable.turn([state]) == [state, plain]
    assert usable.turn([plain]) == [], "another block with the same content"
    assert usable.turn([plain], [plain]) == [plain], "a report of a hit is passed on"


def test_attention_after_a_gap_is_told_once_the_gap_is_filled() -> None:
    usable = one_state()
    usable.turn([stored(b"a", b"b", b"c"), stored(b"a", group=1), stored(b"c", group=1)])
    assert usable.turn([removed(b"b")]) == [removed(b"c", b"b")]
    assert usable.turn([stored(b"b", after=b"a")]) == [stored(b"b", b"c", after=b"a")]
    assert usable.turn([removed(b"a")]) == [removed(b"c", b"b", b"a")]


def test_only_what_is_cached_is_remembered() -> None:
    usable = one_state()
    usable.turn([stored(b"a", b"b"), stored(b"b", group=1)])
    usable.turn([removed(b"a"), removed(b"b")])
    assert usable.num_blocks == 1
    usable.turn([removed(b"b", group=1)])
    assert usable.num_blocks == 0
    usable.turn([stored(b"a"), stored(b"a", group=1)])
    assert usable.turn([AllBlocksCleared()]) == [AllBlocksCleared()]
    assert usable.num_blocks == 0
    assert attention(usable.turn([stored(b"a", group=1)])) == []


def test_another_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EVENTS, "some")
    with pytest.raises(InvalidArgumentError, match=r"HYBRID_BLOCKS_EVENTS='some'.*all, usable"):
        publishes_usable_only()
    for value, is_usable in (("", False), ("all", False), ("usable", True)):
        monkeypatch.setenv(EVENTS, value)
        assert publishes_usable_only() is is_usable


# --- random lives -----------------------------------------------------------


class Index:
    """A router's: hashes of attention that events name."""

    def __init__(self, group: int) -> None:
        self.group, self.hashes = group, set[Any]()
        self.num_again = 0
        """Hashes stored twice; a router that counts references would keep them for good."""

    def read(self, events: Iterable[Any]) -> None:
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.hashes.clear()
            elif event.group_idx != self.group:
                continue
            elif isinstance(event, BlockStored):
                self.num_again += len(self.hashes.intersection(event.block_hashes))
                self.hashes.update(event.block_hashes)
            else:
                self.hashes.difference_update(event.block_hashes)

    def count(self, hashes: Iterable[Any]) -> int:
        return sum(1 for _ in takewhile(self.hashes.__contains__, hashes))


def common(one: list[Any], other: list[Any]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class Life:
    """Random requests over one model; what routers count beside what the manager finds."""

    def __init__(self, name: str, seed: int, *, is_async: bool = False) -> None:
        mix, draw = MIXES[name], Random(seed)
        config: Any = mix.config(Level.NATURAL)

        def configure(vllm_config: Any) -> None:
            vllm_config.kv_events_config = KVEventsConfig(
                enable_kv_cache_events=True, publisher="null"
            )

        chosen: dict[str, Any] = {"scheduler_cls": AsyncScheduler} if is_async else {}
        drafts: Any = {"num_draft_tokens": mix.num_drafts, "draft_method": "ngram"}
        sizes: Any = {"num_requests": 8, "max_model_len": MAX_MODEL_LEN, "hash_block_size": BLOCK}
        sizes["max_num_batched_tokens"] = draw.choice((37, 64, 203))
        self.scheduler: Any = scheduler_over(
            config, configure=configure, **sizes, **drafts, **chosen
        )
        drafts = {"num_drafts": mix.num_drafts, "share_accepted": mix.share_accepted}
        works: Any = {"is_async": is_async, "zeroes_units": True, "looks_ahead": False}
        unowned = unowned_units(self.scheduler)
        worker = FakeWorker(config, unowned=unowned, random=draw, **drafts, **works)
        self.hasher = make_hasher(BLOCK)
        own: Any = {"max_model_len": MAX_MODEL_LEN, "is_async": is_async}
        self.engine = FakeEngine(self.scheduler, worker, self.hasher, draw, **own)
        self.draw = draw
        self.manager = cast("Any", self.scheduler.kv_cache_manager)
        names = [group.rules.name for group in self.manager._geometry().groups]
        self.full = names.index("full")
        self.index = Index(self.full)
        take = self.manager.take_events

        self.sizes: set[tuple[int | None, int]] = set()

        def read() -> list[Any]:
            events = take()
            self.sizes |= {
                (it.group_idx, it.block_size) for it in events if isinstance(it, BlockStored)
            }
            self.index.read(events)
            return list(events)

        # The scheduler takes events in its steps, and publishes them.
        self.manager.take_events = read
        self.told: dict[tuple[int, ...], Request] = {}
        self.num_hits = self.num_above = self.num_below = 0

    def step(self) -> None:
        draw, engine = self.draw, self.engine
        if len(engine._requests) < 8 and draw.random() < 0.4:
            engine.arrive()
        if draw.random() < 0.02:
            engine.hang_up()
        if draw.random() < 0.004:
            engine.reset()
        engine.step()
        self.manager.take_events()
        # All tokens that are known, and one more: a hit leaves the last one to be computed.
        for request in engine._requests.values():
            tokens = tuple(request.all_token_ids)
            whole = tokens[: len(tokens) // BLOCK * BLOCK]
            if whole not in self.told:
                name, one = f"asks{len(self.told)}", SamplingParams(max_tokens=1)
                asks = Request(name, [*whole, 0], one, None, block_hasher=self.hasher)
                self.told[whole] = asks

    def compare(self) -> None:
        """Compare each known prompt's count with what it shares with hits of all of them."""
        convert = partial(map, maybe_convert_block_hash)
        asked = [(list(convert(one.block_hashes)), self.found(one)) for one in self.told.values()]
        for hashes, hit in asked:
            count = self.index.count(hashes)
            shared = max(min(common(hashes, other), found) for other, found in asked)
            self.num_hits += hit > 0
            self.num_above += count > shared
            self.num_below += count < shared

    def found(self, request: Request) -> int:
        _, num_tokens, *_ = self.manager.get_computed_blocks(request)
        return int(num_tokens) // BLOCK


@pytest.fixture
def natural(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    with installed(Level.NATURAL):
        yield monkeypatch


MODELS = ["full-state", "full-3-states", "full-sliding", "full-sliding-state", "full-state-drafts"]


def lived(name: str, seed: int, num_steps: int, every: int) -> Life:
    life = Life(name, seed, is_async=bool(seed % 2))
    for step in range(num_steps):
        life.step()
        if step % every == 0:
            life.compare()
    return life


@pytest.mark.parametrize("name", MODELS)
def test_an_index_counts_what_the_manager_finds(name: str, natural: pytest.MonkeyPatch) -> None:
    natural.setenv(EVENTS, "usable")
    life = lived(name, 1, 60, 3)
    assert life.num_hits > 20
    assert (life.num_above, life.num_below, life.index.num_again) == (0, 0, 0)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", MODELS)
def test_an_index_counts_what_is_found(name: str, seed: int, natural: pytest.MonkeyPatch) -> None:
    natural.setenv(EVENTS, "usable")
    life = lived(name, seed, 300, 1)
    assert (life.num_above, life.num_below, life.index.num_again) == (0, 0, 0)


@pytest.mark.parametrize("name", MODELS)
def test_plain_events_promise_more(name: str, natural: pytest.MonkeyPatch) -> None:
    natural.delenv(EVENTS, raising=False)
    assert lived(name, 1, 60, 3).num_above > 0


@pytest.mark.parametrize("name", MODELS)
def test_metadata_of_groups_give_their_blocks(name: str, natural: pytest.MonkeyPatch) -> None:
    natural.delenv(EVENTS, raising=False)
    life = Life(name, 1)
    sizes = life.sizes
    for _ in range(60):
        life.step()
    owner: Any = SimpleNamespace(scheduler=life.scheduler)
    told = {group["group_idx"]: group["block_size"] for group in group_metadata(owner)}
    assert sizes == {(group, told[group]) for group in told}
