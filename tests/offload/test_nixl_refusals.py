"""No message of a client or another engine makes a worker of NIXL read other blocks, or end."""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
import zmq
from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.offload.nixl import params
from hybrid_blocks.offload.nixl.scheduler import HandshakeData, HybridNixlScheduler
from hypothesis import given
from hypothesis import strategies as st
from nixl_sides import CUT, SLAB_BYTES, Side, meet
from ports import held_port
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import (
    GET_META_MSG,
    HeartbeatInfo,
    NixlAgentMetadata,
    NixlConnectorMetadata,
)

OWN = [[2], [5, 14], [4]]
"""Blocks that a reader of five slabs got: a state, two of attention, another state."""
THEIRS = [[7], [33, 8], [3]]
"""Blocks that an engine of nine slabs computed for the reader."""


@pytest.fixture(scope="module")
def sides() -> Iterator[tuple[Side, Side]]:
    with pytest.MonkeyPatch.context() as patch:
        reader, other = Side("d", 5, patch), Side("p", 9, patch)
        meet(reader, other)
        yield reader, other


def source(**changes: Any) -> dict[str, Any]:
    """Return a router's transfer parameters for a prompt."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": THEIRS,
        "remote_engine_id": "p",
        "remote_request_id": "theirs",
        "remote_host": "localhost",
        "remote_port": 1,
        "tp_size": 1,
        **changes,
    }


def pull(reader: Side, found: dict[str, Any], own: Any = OWN) -> tuple[set[str], set[str]]:
    """Return the requests whose reads ended, and those of them that failed, after a step."""
    metadata = NixlConnectorMetadata()  # type: ignore[no-untyped-call]
    counts = tuple(0 for _ in own)
    metadata.add_new_req_to_recv("a", own, found, counts, awaiting_kvs=True)
    reader.worker.start_load_kv(metadata)
    results = reader.worker.get_transfer_results()
    return results.finished_recving, results.failed_recving


def copied(reader: Side, other: Side, theirs: list[list[int]]) -> torch.Tensor:
    """The reader's memory once it has read blocks, copied here byte by byte."""
    expected = reader.backing.clone()
    rows, sources = expected.view(5, SLAB_BYTES), other.backing.view(9, SLAB_BYTES)
    for block, origin in zip(OWN[1], theirs[1], strict=True):
        (slab, place), (there, other_place) = divmod(block, CUT), divmod(origin, CUT)
        first, other_first = 128 * place, 128 * other_place
        rows[slab, first : first + 64] = sources[there, other_first : other_first + 64]
    for group in (0, 2):
        rows[OWN[group][0], :256] = sources[theirs[group][0], :256]
    return expected


NUMBERS = st.integers(-2, 40) | st.sampled_from([35, 36, 8, 9, 1 << 31, 1 << 64, True, None])
BLOCKS = st.lists(st.lists(NUMBERS, max_size=3), max_size=4)


@given(st.tuples(*[st.lists(NUMBERS, min_size=n, max_size=n) for n in (1, 2, 1)]) | BLOCKS)
def test_a_read_fails_or_copies_the_blocks_named(sides: tuple[Side, Side], theirs: Any) -> None:
    reader, other = sides
    found = source(remote_block_ids=[list(ids) for ids in theirs])
    is_right = list(map(len, theirs)) == [1, 2, 1] and all(
        type(block) is int and 0 < block < size
        for ids, size in zip(theirs, (9, 36, 9), strict=False)
        for block in ids
    )
    is_right = is_right and len(set(theirs[1])) == 2
    expected = copied(reader, other, list(theirs)) if is_right else reader.backing.clone()
    if why := params.refusal(found, "d", 3):
        assert not is_right
        assert "remote_block_ids" in why
        return
    ended, failed = pull(reader, found)
    assert ended == {"a"}
    assert failed == (set() if is_right else {"a"})
    assert torch.equal(reader.backing, expected)
    assert not reader.worker._recving_metadata
    assert not reader.worker._recv_failures


def test_a_refused_read_fails_and_asks_no_engine(sides: tuple[Side, Side]) -> None:
    reader, _ = sides
    before = reader.backing.clone()
    assert pull(reader, params.with_failing_read()) == ({"a"}, {"a"})
    assert pull(reader, params.with_failing_read(), [[], [], []]) == ({"a"}, {"a"})
    assert torch.equal(reader.backing, before)
    assert reader.worker._handshake_futures == {}


def test_an_error_within_vllm_fails_the_read_alone(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(**_: Any) -> None:
        raise AssertionError

    reader, _ = sides
    monkeypatch.setattr(reader.worker, "_compute_desc_ids", fails)
    assert pull(reader, source()) == ({"a"}, {"a"})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"remote_port": 70_000}, "remote_port is 70000, not a port from 1 to 65,535"),
        ({"remote_port": True}, "remote_port is True, not a port"),
        ({"remote_host": ""}, "remote_host is '', not a host"),
        ({"remote_request_id": "\ud800"}, r"remote_request_id is '\ud800', not a request's id"),
        ({"remote_engine_id": ["p"]}, "remote_engine_id is ['p'], not an engine's id"),
        ({"remote_engine_id": "d"}, "remote_engine_id is 'd', which is this engine itself"),
        ({"tp_size": 0}, "tp_size is 0, not a number from 1 to 1,024"),
        ({"pp_size": 1 << 30}, "pp_size is 1073741824, not a number from 1 to 1,024"),
        ({"remote_blocks_expiry_time": float("nan")}, "remote_blocks_expiry_time is nan, not a"),
        ({"remote_num_tokens": -1}, "remote_num_tokens is -1, not a number of tokens"),
        ({"remote_registration_generation": "2"}, "remote_registration_generation is '2', not a"),
        ({"do_remote_prefill": "yes"}, "do_remote_prefill is 'yes', not true or false"),
        ({"do_remote_decode": True}, "do_remote_prefill and do_remote_decode are both set"),
        ({"remote_block_ids": None}, "remote_block_ids is None, not a list of blocks for each"),
        ({"remote_block_ids": [[1], [2]]}, "remote_block_ids has 2 groups, and the engine has 3"),
        ({"remote_block_ids": [[1], 2, [3]]}, "remote_block_ids[1] is 2, not a list of blocks"),
        ({"remote_block_ids": [[1], [-1], [3]]}, "remote_block_ids[1] holds -1, not a block's id"),
        ({"remote_block_ids": [[1], [4, 4], [3]]}, "remote_block_ids[1] holds block 4 2 times"),
    ],
)
def test_each_field_is_refused_by_its_name(changes: dict[str, Any], why: str) -> None:
    assert params.refusal(source(), "d", 3) is None
    refusal = params.refusal(source(**changes), "d", 3)
    assert refusal is not None
    assert refusal.startswith(why)


def side_of(policy: str, *, is_bidirectional: bool = False) -> HybridNixlScheduler:
    side = HybridNixlScheduler.__new__(HybridNixlScheduler)
    side.engine_id, side.num_groups = "d", 3
    side._recomputes = policy == "recompute"
    side.is_bidirectional_kv_xfer_enabled = is_bidirectional
    side._heartbeat_by_engine, side._heartbeat_req_engine = {}, {}
    side._has_mamba, side._bounded_replay = False, False
    side.vllm_config = SimpleNamespace(num_prefill_lookahead_tokens=0)  # type: ignore[assignment]
    return side


def arrive(side: HybridNixlScheduler, found: Any) -> Any:
    request: Any = SimpleNamespace(request_id="a", kv_transfer_params=found)
    side.on_new_request(request)
    return request.kv_transfer_params


def test_what_is_wrong_fails_or_is_computed_as_the_policy_says() -> None:
    wrong = source(remote_port=-1)
    assert arrive(side_of("fail"), wrong) == params.with_failing_read()
    computed = arrive(side_of("recompute"), wrong)
    assert computed["do_remote_prefill"] is False
    assert "remote_block_ids" not in computed


def test_what_is_right_is_followed_and_kept_alive() -> None:
    side = side_of("fail")
    assert arrive(side, source(_p_side_truncated=True, remote_num_tokens=None)) == source()
    assert side._heartbeat_by_engine["p"].req_ids == {"theirs"}


@pytest.mark.parametrize("found", [None, "text", 7, ["a"], {}])
def test_params_that_are_no_mapping_are_left_out(found: object) -> None:
    assert arrive(side_of("fail"), found) in (None, {})


def test_a_read_back_that_no_option_allows_is_not_waited_for() -> None:
    back = source(do_remote_prefill=False, do_remote_decode=True, remote_num_tokens=99)
    assert "remote_num_tokens" not in arrive(side_of("fail"), back)
    allowed = side_of("fail", is_bidirectional=True)
    assert arrive(allowed, back) == back
    wrong = arrive(allowed, back | {"remote_host": 1})
    assert "remote_num_tokens" not in wrong
    assert wrong["do_remote_decode"] is True


# Leases of a reader


class Clock:
    """A reader whose engine counts the same seconds, and what becomes of its lease."""

    def __init__(self, reader: Side, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reader, self.now = reader, 1000.0
        reader.worker._renewals = {}
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def beat(self) -> None:
        metadata = NixlConnectorMetadata()  # type: ignore[no-untyped-call]
        metadata.heartbeat_by_engine = {"p": HeartbeatInfo({"theirs"}, "localhost", 1, 1)}
        self.reader.worker._send_heartbeats(metadata)

    def is_read(self, end: float) -> bool:
        _, failed = pull(self.reader, source(remote_blocks_expiry_time=end))
        return not failed


def test_no_read_follows_a_lease(sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(sides[0], monkeypatch)
    assert clock.is_read(1030.0)
    clock.now += 24
    assert clock.is_read(1030.0)
    clock.now += 2  # The next heartbeat might come too late.
    assert not clock.is_read(1030.0)
    assert clock.is_read(1040.0)


def test_heartbeats_renew_a_lease_while_it_lasts(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(sides[0], monkeypatch)
    for _ in range(10):
        clock.beat()
        clock.now += 10
    assert clock.is_read(1030.0)
    clock.now += 30
    clock.beat()  # after the end
    assert not clock.is_read(1030.0)


def test_the_others_clock_counts(sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(sides[0], monkeypatch)
    monkeypatch.setitem(sides[0].worker._engine_clock_offset, "p", 500.0)
    assert not clock.is_read(1500.0)
    assert clock.is_read(1510.0)


# Metadata of other engines


def mutated(told: NixlAgentMetadata) -> st.SearchStrategy[NixlAgentMetadata]:
    """Metadata with one list changed, as msgspec would still decode it."""
    numbers = st.integers(-(1 << 63), (1 << 64) - 1) | st.sampled_from([0, -1, 1 << 31])
    lists = st.lists(numbers, max_size=6)
    names = st.sampled_from(["region_num_blocks", "block_strides", "kv_caches_base_addr"])

    def changed(change: tuple[str, int, int, Any, bool]) -> NixlAgentMetadata:
        name, place, number, others, is_other = change
        found = list(getattr(told, name))
        found[place % len(found)] = number
        changes: Any = {name: others if is_other else found}
        return replace(told, **changes)

    return st.tuples(names, st.integers(0, 5), numbers, lists, st.booleans()).map(changed)


@given(st.data())
def test_regions_that_cannot_be_are_refused_before_anything_is_noted(
    sides: tuple[Side, Side], data: st.DataObject
) -> None:
    reader, other = sides
    worker = reader.worker
    told = replace(data.draw(mutated(other.told())), engine_id="q")
    counts, strides = told.region_num_blocks or [], told.block_strides
    is_right = (
        len(counts) == len(strides) == len(told.kv_caches_base_addr) == 4
        and all(count > 0 for count in counts)
        and sum(counts) < 1 << 31
        and all(stride >= size for stride, size in zip(strides, told.block_lens, strict=True))
        and all(
            first >= 0 and first + stride * (count - 1) + size <= 1 << 64
            for first, stride, count, size in zip(
                told.kv_caches_base_addr, strides, counts, told.block_lens, strict=True
            )
        )
    )
    assert (worker._impossible(told) is None) == is_right
    if not is_right:
        with pytest.raises(HybridBlocksError):
            worker.add_remote_agent(told)
        assert "q" not in worker.dst_region_num_blocks
        assert "q" not in worker.tp_mappings


def test_the_ranks_of_an_engine_have_regions_of_one_size(sides: tuple[Side, Side]) -> None:
    reader, other = sides
    told = other.told()
    assert reader.worker._impossible(told) is None
    fewer = replace(told, region_num_blocks=[count - 1 for count in told.region_num_blocks or ()])
    assert "other numbers of blocks" in (reader.worker._impossible(fewer) or "")


def test_a_reader_that_asks_for_a_rank_that_is_none_leaves_the_others_served() -> None:
    ready, stop = Event(), Event()
    data = HandshakeData({(0, 0): b"payload"})
    with held_port() as port, zmq.Context() as context:
        listen = HybridNixlScheduler._nixl_handshake_listener
        arguments = data, ready, stop, "127.0.0.1", port
        thread = Thread(target=listen, args=arguments)
        thread.start()
        try:
            assert ready.wait(30)
            with closing(context.socket(zmq.REQ)) as socket:
                socket.connect(f"tcp://127.0.0.1:{port}")
                socket.setsockopt(zmq.RCVTIMEO, 30_000)
                socket.setsockopt(zmq.LINGER, 0)
                for rank, payload in ((1, b""), (0, b"payload")):
                    socket.send(msgspec.msgpack.encode((GET_META_MSG, 0, rank)))
                    assert socket.recv_multipart()[0] == payload
        finally:
            stop.set()
            thread.join()
