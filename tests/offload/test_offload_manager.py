"""The manager as vLLM's scheduler calls it, over simulated bytes."""

import random
import time
from pathlib import Path
from typing import Any

import pytest
from hybrid_blocks.metrics import OFFLOAD
from hybrid_blocks.offload.manager import HybridOffloadingManager
from hybrid_blocks.offload.manager.host import ABSENT
from hybrid_blocks.offload.manager.metrics import HostInfo, definitions
from hybrid_blocks.offload.spec import HybridOffloadingSpec
from hybrid_blocks.offload.tiers import TiersBelow
from hybrid_blocks.offload.tiers.queue import Done, TierQueue
from scheduled import (
    ATTENTION,
    BYTES,
    GROUPS,
    STATE,
    Engine,
    Request,
    disk_at,
    end,
    leave,
    objects_at,
    results,
    settle,
    wanted,
)
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadKey,
    TierFilter,
    TierMatcher,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

DEFINED = definitions().keys()
SIZES = "vllm:kv_offload_cpu_allocation_size"
MISS, HIT, RETRY = LookupResult.MISS, LookupResult.HIT, LookupResult.RETRY


def test_every_figure_is_declared_to_vllm() -> None:
    assert {figure.family for figure in OFFLOAD} <= DEFINED


def keep(engine: Engine, request: Request, num_chunks: int, *, state_at: int) -> None:
    """Store attention of ``num_chunks`` and the state behind chunk ``state_at``."""
    engine.store(request, request.keys[ATTENTION][:num_chunks])
    engine.store(request, [request.keys[STATE][state_at]])


def leave_on_disk(folder: Path, num_chunks: int) -> tuple[Engine, Request]:
    """Return an engine that stored a whole request below ``folder`` and ended, and the request."""
    engine, request = Engine(64 * 4096, disk_at(str(folder))), Request("chat", num_chunks)
    leave(engine, request)
    return engine, request


def until_not_retry(engine: Engine, request: Request, keys: list[OffloadKey]) -> list[LookupResult]:
    """Ask in one step after another until no answer is ``RETRY``."""
    deadline = time.monotonic() + 60
    while RETRY in (found := results(engine, request, keys)):
        assert time.monotonic() < deadline, "the answer does not come"
        engine.end_step()
    return found


def fill(engine: Engine, num_chats: int, name: str = "other") -> None:
    """Let chats come and go that share nothing."""
    for number in range(num_chats):
        other = Request(f"{name} {number}", 4)
        end(engine, other)
        settle(engine)


def test_attention_beyond_the_last_state_is_no_hit() -> None:
    engine = Engine(64 * 4096)
    keep(engine, Request("chat", 8), 8, state_at=3)
    request = Request("chat", 8, 1)
    # The look-up reports one chunk more than the state covers: a drafter's group needs it.
    expected = [HIT] * 5 + [MISS] * 3
    assert results(engine, request, request.keys[ATTENTION]) == expected
    assert results(engine, request, request.keys[STATE][:2:-1]) == [MISS] * 4 + [HIT]
    assert engine.manager.counts.lookups == 1


def test_what_is_being_copied_is_pending_and_a_copy_that_failed_is_a_miss() -> None:
    engine = Engine(64 * 4096)
    request, again = Request("chat", 2), Request("chat", 2, 1)
    keys = [request.keys[ATTENTION][0], request.keys[STATE][0]]
    for is_copied, found in ((False, MISS), (True, HIT)):
        output = engine.manager.prepare_store(keys, request.context)
        assert output is not None
        assert output.keys_to_store == keys
        assert results(engine, again, keys) == [LookupResult.HIT_PENDING] * 2
        engine.manager.complete_store(keys, request.context, success=is_copied)
        assert results(engine, again, keys) == [found] * 2


def test_evicted_keys_are_reported_once() -> None:
    engine = Engine(16 * 4096)
    first = Request("first", 8)
    keep(engine, first, 8, state_at=7)
    second = Request("second", 8)
    keep(engine, second, 8, state_at=7)
    events = list(engine.manager.take_events())
    stored = [key for event in events if not event.removed for key in event.keys]
    removed = [key for event in events if event.removed for key in event.keys]
    assert set(stored) == {
        *first.keys[ATTENTION], first.keys[STATE][7],
        *second.keys[ATTENTION], second.keys[STATE][7],
    }  # fmt: skip
    assert removed
    assert set(removed) < {*first.keys[ATTENTION], first.keys[STATE][7]}
    assert all(event.medium is Medium.CPU for event in events)
    assert list(engine.manager.take_events()) == []


def test_events_tell_only_of_what_was_on_its_way() -> None:
    engine = Engine(64 * 4096)
    request = Request("chat", 3)
    first, second, third = request.keys[ATTENTION]
    engine.store(request, [first])
    engine.manager.complete_store([first, second], request.context)
    (event,) = engine.manager.take_events()
    assert event.keys == [first]
    engine.manager.prepare_store([second, third], request.context)
    engine.manager.complete_store([first, second, third], request.context, success=False)
    engine.manager.prepare_store([third], request.context)
    # vLLM forgets what it noted of a chunk that was given up; of a retried one it needs it still.
    (event,) = engine.manager.take_events()
    assert event.removed
    assert event.metadata_only
    assert event.keys == [second]


def test_what_is_under_way_is_told_under_vllms_names() -> None:
    engine = Engine(16 * 4096)
    request = Request("chat", 4)
    keys = request.keys[ATTENTION]

    def usage() -> list[float]:
        stats = engine.manager.get_stats()
        assert stats is not None
        reduced = stats.reduce()
        assert reduced.keys() - {f"{SIZES}_{it}" for it in ("count", "sum")} <= DEFINED
        names = ("cache_write_usage_perc", "cache_read_usage_perc", "cache_usage_perc")
        return [reduced[f"vllm:kv_offload_cpu_{name}"] for name in names]

    engine.manager.prepare_store(keys[:2], request.context)
    assert usage() == [2 / 16, 0, 2 / 16]
    engine.manager.complete_store(keys[:2], request.context)
    for _ in range(2):  # two requests load the same
        engine.manager.prepare_load(keys[:1], request.context)
        assert usage() == [0, 1 / 16, 1 / 16]
    engine.manager.complete_load(keys[:1], request.context)
    assert usage() == [0, 1 / 16, 1 / 16]
    engine.manager.complete_load(keys[:1], request.context)
    assert usage() == [0, 0, 0]


def test_the_size_of_a_store_counts_what_had_no_room() -> None:
    engine = Engine(16 * 4096)
    request = Request("chat", 24)
    keys = request.keys[ATTENTION]
    engine.manager.prepare_store(keys[:4], request.context)
    engine.manager.prepare_store(keys[:4], request.context)  # all are on their way
    assert engine.manager.prepare_store(keys[4:], request.context) is None
    assert engine.manager.counts.store_sizes == [4, 20]


def test_the_info_metric_counts_tokens_of_the_longest_requests() -> None:
    # A request of 32 tokens has two chunks of attention and one state.
    info = HostInfo.of(GROUPS, 8 * (2 * BYTES[ATTENTION] + BYTES[STATE]), 32)
    assert info.cpu_kv_cache_size_tokens == 8 * 32
    assert HostInfo.of(GROUPS, 1 << 20, 0).cpu_kv_cache_size_tokens is None
    manager = HybridOffloadingManager(GROUPS, 1 << 20, info=info)
    (labels,) = manager.config_info()
    assert tuple(labels) == HybridOffloadingSpec.config_info_keys({})


def test_a_request_gives_up_its_end_first_in_whatever_order_it_stored() -> None:
    engine = Engine(8 * 4096)
    request = Request("chat", 8)
    keys = request.keys[ATTENTION]
    for at in (7, 0, 5, 1, 6, 2, 4, 3):
        engine.store(request, [keys[at]])
    other = Request("other", 2)
    assert engine.store(other, other.keys[ATTENTION]) == 2
    here = [engine.manager.cache.presence(key) != ABSENT for key in keys]
    assert here == [True] * 6 + [False] * 2


def test_a_restart_goes_on_from_the_disk(tmp_path: Path) -> None:
    leave_on_disk(tmp_path, 8)

    after = Engine(64 * 4096, disk_at(str(tmp_path)))
    again = Request("chat", 8, 1)
    assert until_not_retry(after, again, wanted(again)) == [HIT] * 9
    source = after.manager.get_load_source(wanted(again)[0], again.context)
    assert source is CacheHitSource.DISK
    after.load(again, wanted(again))
    after.manager.on_request_finished(again.context)
    assert after.manager.counts.promoted_bytes == 8 * 4096 + 8192


def test_a_request_that_is_still_being_copied_holds_up_no_write_of_others(tmp_path: Path) -> None:
    engine = Engine(64 * 4096, disk_at(str(tmp_path)))
    slow, other = Request("slow", 4), Request("other", 4)
    # The slow request's copy from the device does not end.
    assert engine.manager.prepare_store(slow.keys[ATTENTION], slow.context) is not None
    engine.manager.on_request_finished(slow.context)
    end(engine, other)
    below = engine.manager._below.disk
    assert below is not None
    deadline = time.monotonic() + 60
    while not all(below.store.contains(other.keys[ATTENTION])):
        assert time.monotonic() < deadline, "what ended is not written"
        engine.end_step()
    assert not any(below.store.contains(slow.keys[ATTENTION]))


def test_the_disk_keeps_what_is_used_again_in_host_memory(tmp_path: Path) -> None:
    engine = Engine(64 * 4096, disk_at(str(tmp_path), 1 << 20))
    below = engine.manager._below.disk
    assert below is not None
    used, cold = Request("used", 4), Request("cold", 4)
    for chat in (used, cold):
        end(engine, chat)
        settle(engine)
    assert all(below.store.contains(used.keys[ATTENTION] + cold.keys[ATTENTION]))
    # 120 other chats are three times what the disk holds.
    for turn in range(30):
        fill(engine, 4, f"{turn}")
        assert all(below.store.contains(used.keys[ATTENTION])), "it would be written again"
        again = Request("used", 4, turn + 1)
        assert results(engine, again, wanted(again)) == [HIT] * 5, "in host memory"
        engine.load(again, wanted(again))
        engine.store(again, wanted(again))
        engine.manager.on_request_finished(again.context)
        settle(engine)
    assert not any(below.store.contains(cold.keys[ATTENTION]))


def test_what_is_read_twice_for_a_request_can_be_evicted_when_it_has_ended(tmp_path: Path) -> None:
    """The request is not scheduled after the first read, and the device loses its own blocks."""
    leave_on_disk(tmp_path, 8)
    engine = Engine(64 * 4096, disk_at(str(tmp_path)))
    again = Request("chat", 8, 1)
    attention, state = again.keys[ATTENTION], again.keys[STATE][7]
    assert until_not_retry(engine, again, [*attention[4:], state]) == [HIT] * 5
    keep(engine, Request("another", 1), 1, state_at=0)
    assert until_not_retry(engine, again, [*attention, state]) == [HIT] * 9
    engine.load(again, [*attention, state])
    engine.manager.on_request_finished(again.context)
    fill(engine, 30)
    presences = [engine.manager.cache.presence(key) for key in attention[4:]]
    assert presences == [ABSENT] * 4


def test_a_shorter_prefix_on_the_device_is_looked_up_anew() -> None:
    engine = Engine(64 * 4096)
    request = Request("chat", 8)
    keep(engine, request, 4, state_at=3)
    later = Request("chat", 8, 1)
    attention = later.keys[ATTENTION]
    assert results(engine, later, attention[6:]) == [MISS] * 2
    assert results(engine, later, [*attention[:4], later.keys[STATE][3]]) == [HIT] * 5


def ending_within_a_block(position: int, *chat: Any) -> tuple[Request, list[Any]]:
    """Return a request, and its keys of both groups at a position inside a block."""
    request = Request(*chat)
    return request, [request.add_boundary(group, position) for group in (ATTENTION, STATE)]


def test_a_boundary_within_the_first_block_is_a_hit() -> None:
    """vLLM's ``--prefix-match-unit``: a request may end within a block."""
    engine = Engine(64 * 4096, tokens_per_hash=4)
    request, boundary = ending_within_a_block(8, "chat", 2)
    engine.store(request, boundary)
    again, same = ending_within_a_block(8, "chat", 2, 1)
    assert same == boundary
    assert results(engine, again, boundary) == [HIT] * 2


def test_a_boundary_behind_what_the_device_holds_is_a_hit() -> None:
    engine = Engine(64 * 4096, tokens_per_hash=4)
    request, boundary = ending_within_a_block(56, "chat", 4)
    engine.store(request, boundary)
    again, _ = ending_within_a_block(56, "chat", 4, 1)
    # The device holds three blocks; the fourth is looked up before its parts are.
    assert results(engine, again, again.keys[ATTENTION][3:]) == [MISS]
    assert results(engine, again, boundary) == [HIT] * 2


def test_a_state_below_the_last_is_read_where_vllm_can_load_no_more(tmp_path: Path) -> None:
    """As vLLM computes the last token of a prompt, it asks for no state behind a last block."""
    before = Engine(64 * 4096, disk_at(str(tmp_path)))
    request = Request("chat", 8)
    keep(before, request, 8, state_at=3)
    leave(before, request)

    engine = Engine(64 * 4096, disk_at(str(tmp_path)))
    again = Request("chat", 8, 1)
    attention, states = again.keys[ATTENTION], again.keys[STATE]
    assert until_not_retry(engine, again, attention[:7]) == [HIT] * 7
    asked = states[6::-1]
    assert results(engine, again, asked)[0] is RETRY
    assert until_not_retry(engine, again, asked) == [MISS] * 3 + [HIT] + [MISS] * 3
    # Attention tells as much from then on, and what lies beyond is not kept for the request.
    assert results(engine, again, attention) == [HIT] * 5 + [MISS] * 3
    engine.load(again, [*attention[:4], states[3]])
    engine.manager.on_request_finished(again.context)
    fill(engine, 30)
    assert [engine.manager.cache.presence(key) for key in (*attention, states[7])] == [ABSENT] * 9


def two_on_disk(folder: Path, num_pages: int = 16) -> tuple[Engine, Request, Request]:
    """Return an engine that at first has room for one of two chats on its disk, and the chats."""
    leave(Engine(64 * 4096, disk_at(str(folder))), Request("a", 8), Request("b", 8))
    return Engine(num_pages * 4096, disk_at(str(folder))), Request("a", 8, 1), Request("b", 8, 1)


def test_a_read_without_room_beside_others_waits_for_them(tmp_path: Path) -> None:
    engine, first, second = two_on_disk(tmp_path)
    assert RETRY in results(engine, first, wanted(first))
    assert RETRY in results(engine, second, wanted(second))
    assert until_not_retry(engine, first, wanted(first)) == [HIT] * 9
    assert RETRY in results(engine, second, wanted(second))
    engine.manager.prepare_load(wanted(first), first.context)
    assert RETRY in results(engine, second, wanted(second))
    engine.manager.complete_load(wanted(first), first.context)
    engine.manager.on_request_finished(first.context)
    assert until_not_retry(engine, second, wanted(second)) == [HIT] * 9
    engine.load(second, wanted(second))
    assert engine.manager.counts.promotions_refused == 1


def test_a_read_that_never_has_room_is_not_waited_for(tmp_path: Path) -> None:
    leave_on_disk(tmp_path, 40)
    engine = Engine(16 * 4096, disk_at(str(tmp_path)))
    again = Request("chat", 40, 1)
    assert until_not_retry(engine, again, wanted(again)) == [MISS] * 41
    assert engine.manager.counts.promotions_refused == 1


def test_nobody_waits_for_room_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybrid_blocks.offload.manager.promotions._PATIENCE", 0.2)
    engine, first, second = two_on_disk(tmp_path)
    assert until_not_retry(engine, first, wanted(first)) == [HIT] * 9
    assert RETRY in results(engine, second, wanted(second))
    assert until_not_retry(engine, second, wanted(second)) == [MISS] * 9


def test_a_waiting_request_is_told_of_transfers_once_a_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, first, second = two_on_disk(tmp_path, num_pages=64)
    for request in (first, second):
        assert engine.manager.lookup(request.keys[ATTENTION][0], request.context) is RETRY
    polls: list[bool] = []
    finished = TierQueue.finished

    def none_yet(_: TierQueue[Any], *, wait: bool = False) -> list[Done]:
        polls.append(wait)
        return []

    monkeypatch.setattr(TierQueue, "finished", none_yet)
    for _ in range(3):
        for request in (first, second):
            found = results(engine, request, wanted(request))
            # The prefix is put off once, and a miss ends the scan; the state is put off too.
            assert found == [RETRY] + [MISS] * 7 + [RETRY]
        engine.end_step()
    assert len(polls) == 3 * 2  # at the first question of a step, and at its end
    monkeypatch.setattr(TierQueue, "finished", finished)
    # A caller without steps hears of them too, once it asks again.
    deadline = time.monotonic() + 60
    while RETRY in results(engine, second, wanted(second)):
        assert time.monotonic() < deadline, "the answer does not come"


def test_what_leads_to_chunks_that_were_read_stays_with_them(tmp_path: Path) -> None:
    leave_on_disk(tmp_path, 8)
    engine = Engine(48 * 4096, disk_at(str(tmp_path)))
    end(engine, Request("chat", 4))
    again = Request("chat", 8, 1)
    assert until_not_retry(engine, again, wanted(again)) == [HIT] * 9
    engine.manager.on_request_finished(again.context)
    for number in range(30):
        fill(engine, 1, name=f"other {number}")
        engine.manager.touch(again.keys[ATTENTION][7:], again.context)
    assert ABSENT not in [engine.manager.cache.presence(key) for key in wanted(again)]


def test_attention_on_disk_is_not_read_where_no_state_is(tmp_path: Path) -> None:
    before = Engine(64 * 4096, disk_at(str(tmp_path)))
    request = Request("chat", 8)
    before.store(request, request.keys[ATTENTION])
    before.manager.on_request_finished(request.context)
    leave(before)
    after = Engine(64 * 4096, disk_at(str(tmp_path)))
    again = Request("chat", 8, 1)
    assert results(after, again, again.keys[ATTENTION]) == [MISS] * 8
    assert after.manager.counts.promoted_bytes == 0


def test_a_damaged_chunk_ends_in_a_miss_and_the_rest_goes_on(tmp_path: Path) -> None:
    before, request = leave_on_disk(tmp_path, 4)
    (segment,) = tmp_path.glob("*/*.seg")
    content = bytearray(segment.read_bytes())
    content[content.index(before.content(request.keys[ATTENTION][2]).tobytes())] ^= 1
    segment.write_bytes(content)
    after = Engine(64 * 4096, disk_at(str(tmp_path)))
    again = Request("chat", 4, 1)
    assert results(after, again, again.keys[ATTENTION])[0] is RETRY
    settle(after)
    assert results(after, again, again.keys[ATTENTION])[1:] == [MISS] * 3
    after.manager.cache.check_integrity()


def epochs(path: Path, url: str) -> tuple[Engine, list[str]]:
    """An engine over a disk and objects, and the epochs in which these were opened again."""
    opened: list[str] = []

    def reopen(epoch: str) -> TiersBelow:
        opened.append(epoch)
        return engine.over(disk_at(str(path), epoch=epoch), objects_at(url, epoch=epoch))

    engine = Engine(64 * 4096, disk_at(str(path)), objects_at(url), reopen=reopen)
    return engine, opened


def test_a_reset_begins_a_new_epoch_below_host_memory(tmp_path: Path) -> None:
    disk, url = tmp_path / "disk", f"file://{tmp_path / 'shared'}"
    engine, opened = epochs(disk, url)
    end(engine, Request("chat", 4))
    settle(engine)
    for number in range(1, 4):
        engine.manager.reset_cache()
        assert len(set(opened)) == number
        again = Request("chat", 4, 2 * number)
        assert results(engine, again, again.keys[ATTENTION]) == [MISS] * 4, "of other weights"
        end(engine, again)
        settle(engine)
        fill(engine, 16, f"other {number}")
        later = Request("chat", 4, 2 * number + 1)
        assert results(engine, later, wanted(later))[0] is RETRY, "of these weights, from below"
        assert until_not_retry(engine, later, wanted(later)) == [HIT] * 5
        engine.load(later, wanted(later))
        engine.manager.on_request_finished(later.context)
    engine.manager.cache.check_integrity()
    engine.manager.shutdown()

    # A new process has the weights of the first epoch again, and never those after it.
    after = Engine(64 * 4096, disk_at(str(disk)), objects_at(url))
    again = Request("chat", 4, 9)
    assert until_not_retry(after, again, again.keys[ATTENTION]) == [HIT] * 4
    after.manager.shutdown()


def test_a_tier_that_cannot_be_opened_again_is_tried_at_the_next_reset(tmp_path: Path) -> None:
    fails = [True]

    def reopen(epoch: str) -> TiersBelow:
        if fails.pop():
            raise OSError("no such folder")
        return engine.over(disk_at(str(tmp_path), epoch=epoch))

    engine = Engine(64 * 4096, disk_at(str(tmp_path)), reopen=reopen)
    engine.manager.reset_cache()
    request = Request("chat", 4)
    keep(engine, request, 4, state_at=3)
    assert results(engine, request, request.keys[STATE][3:]) == [HIT]
    assert not engine.manager.has_pending_work()
    fails.append(False)
    engine.manager.reset_cache()
    end(engine, Request("chat", 4, 1))
    settle(engine)
    assert engine.below.disk is not None
    assert engine.below.disk.store.num_chunks > 0


def test_another_machine_goes_on_from_the_objects(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'shared'}"
    leave(Engine(64 * 4096, disk_at(str(tmp_path / "here")), objects_at(url)), Request("chat", 8))
    there = Engine(64 * 4096, disk_at(str(tmp_path / "there")), objects_at(url))
    again = Request("chat", 8, 1)
    assert until_not_retry(there, again, wanted(again)) == [HIT] * 9
    source = there.manager.get_load_source(wanted(again)[0], again.context)
    assert source is CacheHitSource.EXTERNAL_UNSPECIFIED
    there.load(again, wanted(again))
    there.manager.on_request_finished(again.context)
    assert there.manager.counts.promoted_bytes == 8 * 4096 + 8192
    leave(there)

    # The object has come to the disk as well, which is nearer.
    later = Engine(64 * 4096, disk_at(str(tmp_path / "there")), objects_at(url))
    third = Request("chat", 8, 2)
    assert until_not_retry(later, third, wanted(third)) == [HIT] * 9
    source = later.manager.get_load_source(wanted(third)[0], third.context)
    assert source is CacheHitSource.DISK


def test_an_object_that_is_gone_ends_in_a_miss(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    request = Request("chat", 4)
    leave(Engine(64 * 4096, objects=objects_at(url)), request)
    there = Engine(64 * 4096, objects=objects_at(url))
    (gone,) = tmp_path.glob(f"*/*/{request.keys[ATTENTION][2][:-4].hex()}")
    gone.unlink()
    again = Request("chat", 4, 1)
    assert results(there, again, again.keys[ATTENTION])[0] is RETRY
    settle(there)
    assert results(there, again, again.keys[ATTENTION])[1:] == [MISS] * 3
    there.manager.cache.check_integrity()


@pytest.mark.parametrize(
    ("tier", "matchers"), [("disk", ()), ("objects", (TierMatcher(locality=Locality.LOCAL),))]
)
def test_a_request_may_leave_tiers_out(tier: str, matchers: Any, tmp_path: Path) -> None:
    def engine() -> Engine:
        if tier == "disk":
            return Engine(64 * 4096, disk_at(str(tmp_path)))
        return Engine(64 * 4096, objects=objects_at(f"file://{tmp_path}"))

    leave(engine(), Request("chat", 2))
    there = engine()
    again = Request("chat", 2, 1)
    again.context.load_tier_filter = TierFilter(matchers=matchers)
    assert results(there, again, again.keys[ATTENTION]) == [MISS] * 2


@pytest.mark.parametrize("seed", range(6))
def test_whatever_was_evicted_what_is_a_hit_has_its_bytes(seed: int, tmp_path: Path) -> None:
    """Random chats over a small host memory, a small disk and objects, with restarts."""
    rng = random.Random(seed)
    folder, url = str(tmp_path / "disk"), f"file://{tmp_path / 'objects'}"

    def start() -> Engine:
        objects = objects_at(url) if seed % 2 else None
        return Engine(24 * 4096, disk_at(folder, 1 << 20), objects)

    engine = start()
    lengths = dict.fromkeys("abcdefgh", 1)
    num_hits = 0
    for number in range(150):
        chat = rng.choice(list(lengths))
        request = Request(chat, lengths[chat], number)
        attention, states = request.keys[ATTENTION], request.keys[STATE]
        found = until_not_retry(engine, request, [*attention, *states[::-1]])
        run = [*found[: len(attention)], MISS].index(MISS)
        ends = found[len(found) - run :]
        length = run - ends.index(HIT) if HIT in ends else 0
        if length:
            engine.load(request, [*attention[:length], states[length - 1]])
            num_hits += 1
        engine.store(request, attention[length:])
        if rng.random() < 0.8:
            engine.store(request, [states[-1]])
        engine.manager.on_request_finished(request.context)
        engine.end_step()
        engine.manager.cache.check_integrity()
        lengths[chat] = lengths[chat] % 8 + 1
        if rng.random() < 0.05:
            engine.manager.shutdown()
            engine = start()
    assert num_hits > 20
