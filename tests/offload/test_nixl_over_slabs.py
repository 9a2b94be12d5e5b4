"""Pulls of blocks in slabs: every byte, with other numbers of slabs on both sides."""

import time
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch
from hybrid_blocks.errors import HybridBlocksError, InvalidArgumentError
from hybrid_blocks.offload.nixl import worker as module
from hybrid_blocks.offload.nixl.held import Held
from hybrid_blocks.offload.nixl.scheduler import SlabNixlScheduler
from hybrid_blocks.offload.nixl.stalled import StalledReads, timeout_of
from hybrid_blocks.offload.nixl.worker import SlabNixlWorker
from nixl_sides import CUT, SLAB_BYTES, Side, meet
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker
from vllm.v1.request import RequestStatus


def pull(reader: Side, ids: Any, other_ids: Any) -> None:
    """Read blocks from each rank that has a part of them, as vLLM does."""
    worker, name = reader.worker, "p"
    plan, sizes = worker.tp_mappings[name], worker.dst_region_num_blocks
    splits = worker.src_xfer_handles_by_tp_ratio
    into = next(iter(splits.values()), [worker.src_xfer_handles_by_block_size[16]])
    for target, rank in zip(into, plan.all_source_ranks, strict=True):
        own, theirs = (
            [
                list(blocks) if rank in ranks else []
                for blocks, ranks in zip(side, plan.source_ranks_per_group, strict=True)
            ]
            for side in (ids, other_ids)
        )
        worker.nixl_wrapper.read(
            target,
            worker._compute_desc_ids(
                block_ids=own, region_num_blocks=sizes[reader.worker.engine_id]
            ),
            worker.dst_xfer_side_handles[name][rank],
            worker._compute_desc_ids(block_ids=theirs, region_num_blocks=sizes[name]),
        )


def test_attention_alone_is_read_where_others_have_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, other = Side("d", 5, monkeypatch), Side("p", 9, monkeypatch)
    meet(reader, other)
    before = reader.backing.clone()
    pull(reader, [[], [6], []], [[], [1], []])
    changed = (reader.backing != before).nonzero().flatten()
    assert set(changed.tolist()) <= set(range(6 * 128, 6 * 128 + 64))
    assert torch.equal(reader.backing[768:832], other.backing[128:192])


def block(side: Side, number: int, layer: str) -> torch.Tensor:
    """A block of attention by heads, a view."""
    size = 32 * side.slab // SLAB_BYTES
    return side.rows(size * (layer == "l.10"), CUT, size)[number].view(-1, 32)


def parts(side: Side, slab: int) -> list[torch.Tensor]:
    """The parts of a state by heads, views."""
    heads = side.slab // SLAB_BYTES
    sizes = [size * heads for size in (40, 20, 40, 156)]
    row = side.backing.view(-1, side.slab)[slab, : sum(sizes)]
    return [part.view(heads, -1) for part in row.split(sizes)]


@pytest.mark.parametrize(("num_readers", "num_others"), [(2, 1), (1, 2)])
def test_ranks_of_two_sizes_read_their_heads(
    num_readers: int, num_others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_heads, other_heads = 2 // num_readers, 2 // num_others
    others = [
        Side("p", 9, monkeypatch, heads=other_heads, rank=rank, tp_size=num_others)
        for rank in range(num_others)
    ]
    for rank in range(num_readers):
        reader = Side("d", 5, monkeypatch, heads=own_heads, rank=rank, tp_size=num_readers)
        meet(reader, *others)
        expected = reader.backing.clone()
        pull(reader, [[2], [5, 14], [4]], [[7], [33, 8], [3]])
        for head in range(own_heads):
            place, there = divmod(rank * own_heads + head, other_heads)
            pairs = [
                (block(reader, own, layer), block(others[place], origin, layer))
                for own, origin in ((5, 33), (14, 8))
                for layer in ("l.0", "l.10")
            ]
            for slab, origin in ((2, 7), (4, 3)):
                both = parts(reader, slab), parts(others[place], origin)
                pairs += zip(*both, strict=True)
            assert all(torch.equal(mine[head], theirs[there]) for mine, theirs in pairs)
        written = [(slab * 512, 256) for slab in (2, 4)] + [(own * 128, 64) for own in (5, 14)]
        for first, size in written:
            span = slice(first * own_heads, (first + size) * own_heads)
            expected[span] = reader.backing[span]
        assert torch.equal(reader.backing, expected)
        assert reader.worker.tp_mappings["p"].local_consumers == num_readers


def test_states_that_ranks_share_are_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Mamba2 layer of one group has its B and C on each rank: half of them would be read."""
    reader = Side("d", 5, monkeypatch, rank=1, tp_size=2)
    whole = Side("p", 9, monkeypatch, heads=2)
    other = whole.worker
    other._mamba_ssm_size = 160, 312
    payload = msgspec.msgpack.encode(other._described(other.kv_caches_base_addr["p"][0]))
    other.xfer_handshake_metadata.agent_metadata_bytes = payload
    with pytest.raises(HybridBlocksError, match=r"size 2 here and 1 there; set the same size"):
        meet(reader, whole)


def test_states_with_rows_for_other_drafts_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions keep a row more for each draft."""
    reader, other = Side("d", 5, monkeypatch), Side("p", 9, monkeypatch)
    reader.worker._mamba_ssm_size = 120, 156
    with pytest.raises(HybridBlocksError, match="the same number of drafts"):
        meet(reader, other)


def test_engines_with_other_groups_of_layers_do_not_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, other = Side("d", 5, monkeypatch), Side("p", 9, monkeypatch)
    other.worker.region_group_ids[-1] = 2
    other.worker.xfer_handshake_metadata.agent_metadata_bytes = msgspec.msgpack.encode(
        other.worker._described([1] * 4)
    )
    with pytest.raises(HybridBlocksError, match="other groups of layers"):
        meet(reader, other)


class Reads:
    """A worker with one read under way, whose state and whose time are set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        reader, other = Side("d", 5, monkeypatch), Side("p", 9, monkeypatch)
        meet(reader, other)
        self.worker = worker = reader.worker
        self.state, self.released = "PROC", 0
        agent = worker.nixl_wrapper
        agent.check_xfer_state = lambda _handle: self.state
        agent.release_xfer_handle = self._release
        worker._recving_metadata["a"] = SimpleNamespace(remote=SimpleNamespace(engine_id="p"))
        worker._recving_transfers["a"] = [1]
        worker._cleanup_remote_engines = lambda: None
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def _release(self, _handle: int) -> None:
        self.released += 1

    def step(self, seconds: float = 0) -> tuple[set[str], set[str], Any]:
        """Return requests whose reads ended, those that failed, and the report of late ones."""
        self.now += seconds
        results = self.worker.get_transfer_results()
        return results.finished_recving, results.failed_recving, self.worker.take_stalled()


def test_a_read_that_takes_too_long_fails_and_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch)
    assert reads.step() == (set(), set(), None)
    assert reads.step(59) == (set(), set(), None)
    assert reads.step(1) == ({"a"}, {"a"}, StalledReads(given_up=("a",)))
    # A handle that was released would be a read that goes on unseen.
    assert reads.released == 0
    assert reads.worker._engines_with_inflight_transfers() == {"p"}
    assert reads.step(600) == (set(), set(), None)
    reads.state = "DONE"
    assert reads.step() == (set(), set(), StalledReads(ended=("a",)))
    assert reads.released == 1
    assert reads.worker._engines_with_inflight_transfers() == set()


def test_blocks_come_free_after_nixl_forgot_their_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch)
    reads.step()
    assert reads.step(60)[2] == StalledReads(given_up=("a",))
    reads.worker.transfer_topo = None
    reads.worker._cleanup_remote_engine("p")
    reads.worker.transfer_topo = SimpleNamespace()
    assert reads.worker._engines_with_inflight_transfers() == set()
    # NIXL answers no more for a read of an engine that it has forgotten.
    reads.state = "ERR"
    assert reads.step(59) == (set(), set(), None)
    assert reads.released == 0
    assert reads.step(1) == (set(), set(), StalledReads(ended=("a",)))
    assert reads.released == 1
    assert reads.step(60) == (set(), set(), None)


def test_reads_that_take_too_long_are_counted_by_rank() -> None:
    both = StalledReads(given_up=("a",)).aggregate(StalledReads(given_up=("a", "b")))
    assert both == StalledReads(given_up=("a", "a", "b"))
    both = both.aggregate(StalledReads(ended=("a",)))
    assert both == StalledReads(given_up=("a", "a", "b"), ended=("a",))


@pytest.mark.parametrize("value", [0, -1, "60", True])
def test_a_timeout_of_reads_is_seconds(value: object) -> None:
    transfer = SimpleNamespace(get_from_extra_config=lambda *_: value)
    with pytest.raises(InvalidArgumentError, match="read_timeout"):
        timeout_of(transfer)


@pytest.mark.parametrize("in_slabs", [True, False])
def test_an_engine_at_another_level_is_refused_with_the_reason(
    in_slabs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def differs(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"hash mismatch. Local: a, Remote: {mode_of(not in_slabs)}")

    def mode_of(is_in_slabs: bool) -> str:
        return f"<{'slabs' if is_in_slabs else 'pull'}>"

    monkeypatch.setattr(base_worker.NixlBaseConnectorWorker, "_nixl_handshake", differs)
    monkeypatch.setattr(
        module,
        "compute_nixl_compatibility_hash",
        lambda *_, transfer_mode: mode_of("slabs" in transfer_mode),
    )
    cls = SlabNixlWorker if in_slabs else module.HybridNixlWorker
    worker: Any = cls.__new__(cls)
    worker.vllm_config = worker.backend_name = None
    with pytest.raises(HybridBlocksError, match=r"runs at level natural, .* on both"):
        worker._nixl_handshake("host", 1, 1, "engine")


class Prompts:
    """The scheduler side of an engine of nine slabs, which may hold five of them for readers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        transfer = SimpleNamespace(
            get_from_extra_config={"held_share": 0.6}.get,
            kv_buffer_device="cpu",
            kv_load_failure_policy="fail",
        )
        parallel = SimpleNamespace(
            tensor_parallel_size=1,
            decode_context_parallel_size=1,
            pipeline_parallel_size=1,
            data_parallel_index=0,
        )
        config: Any = SimpleNamespace(
            parallel_config=parallel,
            cache_config=SimpleNamespace(block_size=16),
            kv_transfer_config=transfer,
            scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
            num_prefill_lookahead_tokens=0,
        )
        blocks = Side("p", 9, monkeypatch).config
        self.side = SlabNixlScheduler(config, "p", blocks)

    def finish(self, name: str, *ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        request: Any = SimpleNamespace(
            request_id=name,
            num_computed_tokens=33,
            num_prompt_tokens=33,
            status=RequestStatus.FINISHED_LENGTH_CAPPED,
            kv_transfer_params={"do_remote_decode": True},
        )
        return self.side.request_finished(request, ids)

    def figures(self) -> list[float]:
        return [sample.value for sample in self.side.samples()[:2]]


def test_a_reader_is_told_of_blocks_of_the_prompt_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block for drafts behind them would shift all of a reader that has the first ones."""
    prompts = Prompts(monkeypatch)
    is_held, told = prompts.finish("a", [7], [4, 5, 6, 9], [8])
    assert is_held
    assert told is not None
    assert told["remote_blocks_expiry_time"] == prompts.side._reqs_need_send["a"]
    assert list(told["remote_block_ids"]) == [[7], [4, 5, 6], [8]]


def test_a_prompt_without_room_is_left_to_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = Prompts(monkeypatch)
    assert prompts.finish("a", [7], [4, 5, 6], [8])[0]
    assert prompts.finish("b", [3], [8, 9, 10], [2]) == (False, None)
    assert prompts.figures() == [3, 1]
    metadata: Any = prompts.side.build_connector_meta(cast("Any", None))
    assert list(metadata.reqs_to_send) == ["a"]
    assert metadata.reqs_not_processed == {"b"}
    read: Any = SimpleNamespace(finished_recving=None, finished_sending={"a"})
    prompts.side.update_connector_output(read)
    assert prompts.finish("c", [3], [8, 9, 10], [2])[0]
    assert prompts.figures() == [3, 1]


def test_what_waits_for_its_reader_is_bounded() -> None:
    config: Any = SimpleNamespace(num_blocks=10, blocks_per_slab_of=lambda group: (4, 1)[group])
    held = Held(config, 0.5)
    assert held.take("a", [[9, 8, 7, 6, 5], [3]])
    assert held.num_slabs == 3
    assert not held.take("b", [[1, 2, 4, 10], [1, 2]])
    assert held.take("c", [[1, 0], [2]])
    assert (held.num_slabs, held.num_refused) == (5, 1)
    held.give_back("a")
    held.give_back("b")
    assert held.num_slabs == 2
    with pytest.raises(InvalidArgumentError, match="held_share"):
        Held(config, 2)
