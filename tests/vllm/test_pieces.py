"""The pieces of a step: they hold each token once, and a piece ends at each checkpoint."""

import dataclasses
from collections.abc import Iterator
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from examples import examples
from hybrid_blocks.vllm.worker import pieces, prefill_checkpoint, runner_hooks, state_layers
from hybrid_blocks.vllm.worker.pieces import ATTRIBUTE, Cut, cut, part_of
from hybrid_blocks.vllm.worker.prefill_checkpoint import PrefillCheckpoint, Step, register, take
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracle.engines import mamba
from vllm.forward_context import ForwardContext, get_forward_context, override_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.worker.utils import AttentionGroup, copy_kv_cache_blocks_inplace

Rows = list[tuple[int, int, list[int]]]
"""Rows of a batch: tokens computed before, tokens of the step, offsets of checkpoints in these."""


@st.composite
def batches(draw: st.DrawFn) -> Rows:
    """Decodes, and after them chunks with checkpoints at any offsets inside."""
    rows: Rows = [(draw(st.integers(1, 90)), 1, []) for _ in range(draw(st.integers(0, 3)))]
    for _ in range(draw(st.integers(0, 4))):
        count = draw(st.integers(1, 12))
        offsets = draw(st.sets(st.integers(1, max(1, count - 1))))
        before = draw(st.sampled_from([0, 7, 64])) if count > 1 else 0
        rows.append((before, count, sorted(offsets) if count > 1 else []))
    return rows or [(0, 5, [2])]


def kept_in(row: int, offset: int) -> int:
    return 20 + 12 * row + offset


def checkpoints_of(rows: Rows) -> dict[int, list[PrefillCheckpoint]]:
    return {
        row: [
            PrefillCheckpoint(f"{row}", 0, before + at, 10 + row, kept_in(row, at))
            for at in offsets
        ]
        for row, (before, _, offsets) in enumerate(rows)
        if offsets
    }


def cuts_of(rows: Rows, padding: int = 0) -> list[Cut]:
    starts = [0, *accumulate(count for _, count, _ in rows)]
    lengths = [before + count for before, count, _ in rows]
    return list(cut(starts, lengths, starts[-1] + padding, checkpoints_of(rows)))


def batch_of(rows: Rows, padding: int = 0) -> CommonAttentionMetadata:
    starts = torch.tensor([0, *accumulate(count for _, count, _ in rows)], dtype=torch.int32)
    lengths = torch.tensor([before + count for before, count, _ in rows], dtype=torch.int32)
    num_tokens = int(starts[-1]) + padding
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts.clone(),
        seq_lens=lengths,
        seq_lens_cpu_upper_bound=lengths.clone(),
        num_reqs=len(rows),
        num_actual_tokens=num_tokens,
        max_query_len=max(count for _, count, _ in rows),
        max_seq_len=int(lengths.max()),
        block_table_tensor=10 + torch.arange(len(rows), dtype=torch.int32)[:, None],
        slot_mapping=torch.arange(num_tokens),
        positions=torch.arange(num_tokens),
        is_prefilling=torch.tensor([before == 0 or count > 1 for before, count, _ in rows]),
    )


@given(rows=batches(), padding=st.sampled_from([0, 3]))
@example(rows=[(3, 1, []), (0, 9, [1, 2, 8])], padding=0)
@settings(max_examples=examples(300), deadline=None)
def test_pieces_hold_each_token_once_with_its_position(rows: Rows, padding: int) -> None:
    batch = batch_of(rows, padding)
    seen: list[tuple[int, int]] = []
    for one in cuts_of(rows, padding):
        part = part_of(batch, one)
        assert part.num_actual_tokens == one.end - one.begin
        assert part.slot_mapping.tolist() == list(range(one.begin, one.end))
        assert part.num_reqs == len(part.seq_lens) == len(part.is_prefilling) > 0
        assert torch.equal(part.query_start_loc, part.query_start_loc_cpu)
        assert torch.equal(part.seq_lens, part.seq_lens_cpu_upper_bound)
        assert part.query_start_loc[0] == 0
        counts = part.query_start_loc.diff().tolist()
        assert (part.max_query_len, part.max_seq_len) == (max(counts), max(part.seq_lens.tolist()))
        # Only a request that computes nothing else may have a row without tokens.
        assert all(counts)
        for slot, length, count in zip(
            part.block_table_tensor[:, 0].tolist(), part.seq_lens.tolist(), counts, strict=True
        ):
            seen += [(slot - 10, position) for position in range(length - count, length)]
        if one.checkpoint:
            assert one.length == one.checkpoint.position == part.seq_lens[-1]
            assert one.checkpoint.src_block == part.block_table_tensor[-1, 0]
    spans = [range(before, before + count) for before, count, _ in rows]
    expected = [(row, position) for row, span in enumerate(spans) for position in span]
    assert seen == expected


@given(rows=batches())
@settings(max_examples=examples(200), deadline=None)
def test_a_piece_ends_at_each_checkpoint_and_begins_with_decodes_of_builders(rows: Rows) -> None:
    cuts = cuts_of(rows)
    ends = [one.checkpoint for one in cuts if one.checkpoint]
    assert ends == [one for row in checkpoints_of(rows).values() for one in row]
    batch = batch_of(rows)
    for one in cuts:
        part = part_of(batch, one)
        counts = part.query_start_loc.diff()
        is_decode = (counts == 1) & (part.seq_lens > counts)
        first = int((~is_decode).int().argmax()) if not bool(is_decode.all()) else len(counts)
        assert not bool(is_decode[first:].any()), "a decode stands behind a prefill"


def test_the_batch_itself_is_left_as_it_was() -> None:
    rows: Rows = [(5, 1, []), (0, 9, [4])]
    batch, untouched = batch_of(rows), batch_of(rows)
    for one in cuts_of(rows):
        part_of(batch, one)
    for name in ("query_start_loc", "query_start_loc_cpu", "seq_lens", "seq_lens_cpu_upper_bound"):
        assert torch.equal(getattr(batch, name), getattr(untouched, name))


@pytest.mark.parametrize("position", [0, 4, 9, 12])
def test_a_checkpoint_outside_its_chunk_is_refused(position: int) -> None:
    one = PrefillCheckpoint("a", 0, position, 1, 2)
    with pytest.raises(ValueError, match="is not inside"):
        list(cut([0, 5], [9], 5, {0: [one]}))


def test_every_field_of_vllms_metadata_is_cut_or_known_to_stay() -> None:
    lengths = {"query_start_loc", "query_start_loc_cpu", "seq_lens", "seq_lens_cpu_upper_bound"}
    counts = {"num_reqs", "num_actual_tokens", "max_query_len", "max_seq_len"}
    caches = {"_num_computed_tokens_cache", "_token_to_req_indices_cache"}
    of_attention = {
        *("logits_indices_padded", "num_logits_indices", "max_logits_per_req"),
        *("encoder_seq_lens", "encoder_seq_lens_cpu", "mm_req_doc_ranges"),
    }
    known = {*pieces.BY_ROW, *pieces.BY_TOKEN} | lengths | counts | caches | of_attention
    assert {field.name for field in dataclasses.fields(CommonAttentionMetadata)} <= known


# --- layers -----------------------------------------------------------------


class Layer:
    """A layer whose state is the sum of a request's inputs, and whose output is that so far."""

    prefix = "layer"

    def __init__(self, num_slots: int) -> None:
        self.kv_cache = (torch.zeros(num_slots, 2), torch.zeros(num_slots, 3))
        self.num_calls = 0

    def core(self, values: Any, transposed: Any, out: Any) -> None:
        self.num_calls += 1
        layers: Any = get_forward_context().attn_metadata
        part = layers[self.prefix].part
        for row, (begin, end) in enumerate(pairwise(part.query_start_loc.tolist())):
            slot = int(part.block_table_tensor[row, 0])
            sums, counts = self.kv_cache
            if part.seq_lens[row] == end - begin:
                sums[slot], counts[slot] = 0, 0
            for token in range(begin, end):
                sums[slot] += values[token] + transposed[0, token]
                counts[slot] += 1
                out[token] = sums[slot, 0]


def with_part(batch: Any) -> SimpleNamespace:
    return SimpleNamespace(part=batch)


@given(rows=batches())
@settings(max_examples=examples(60), deadline=None)
def test_a_layer_in_pieces_computes_the_same_and_leaves_the_states_between(rows: Rows) -> None:
    batch, cuts, step = batch_of(rows), cuts_of(rows), Step([])
    num_tokens = batch.num_actual_tokens
    values = torch.arange(1.0, num_tokens + 3)
    step.begin([])
    whole, in_pieces = Layer(120), Layer(120)
    run = state_layers.in_pieces(Layer.core, {"values": 0, "transposed": 1, "out": 0})
    outs = []
    for layer, call in ((whole, Layer.core), (in_pieces, run)):
        metadata: Any = with_part(batch)
        if layer is in_pieces:
            parts = [
                pieces.Piece(it, with_part(part_of(batch, it)), is_last=it is cuts[-1], step=step)
                for it in cuts
            ]
            setattr(metadata, ATTRIBUTE, parts)
            step.expect(sum(one.checkpoint is not None for one in cuts))
        context = ForwardContext({}, {"layer": metadata}, {})
        out = torch.zeros(num_tokens + 2)
        with override_forward_context(context):
            call(layer, values, transposed=values[None], out=out)
        assert context.attn_metadata == {"layer": metadata}
        outs.append(out)
    step.check_written()
    assert torch.equal(*outs)
    assert in_pieces.num_calls == len(cuts)
    for row, (_, count, offsets) in enumerate(rows):
        assert torch.equal(whole.kv_cache[0][10 + row], in_pieces.kv_cache[0][10 + row])
        begin = int(batch.query_start_loc[row])
        for at in offsets:
            sums, counts = (tensor[kept_in(row, at)] for tensor in in_pieces.kv_cache)
            assert sums[0] == 2 * values[begin : begin + at].sum()
            assert counts[0] == at < count


# --- runners ----------------------------------------------------------------


class Builder:
    """Stands for a builder of states' metadata, and notes how it stood in each call."""

    supports_update_block_table = True
    mamba_aligned_state_indices: Any = None
    decode_cudagraph_max_bs = 8

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def build(self, _: int, batch: Any, **kwargs: Any) -> SimpleNamespace:
        self.calls.append(
            kwargs
            | {
                "supports": self.supports_update_block_table,
                "aligned": self.mamba_aligned_state_indices,
                "most": self.decode_cudagraph_max_bs,
            }
        )
        slots = batch.block_table_tensor[:, 0]
        return SimpleNamespace(part=batch, non_spec_state_indices_tensor=slots)


@pytest.fixture
def _hooked() -> Iterator[None]:
    runner_hooks.install()
    yield
    runner_hooks.uninstall()


def engine(number: int, builder: Builder) -> tuple[AttentionGroup, Any, torch.Tensor]:
    """Return a group of two layers, what stands for vLLM's configuration, and the arena."""
    names = [f"{number}.{layer}" for layer in "ab"]
    backend: Any = None
    group = AttentionGroup(backend, names, mamba(16, "align"), number, metadata_builders=[builder])  # type: ignore[list-item]
    arena = torch.zeros(100, 4)
    layers = {name: SimpleNamespace(kv_cache=(arena[:, :2], arena[:, 2:])) for name in names}
    compilation = SimpleNamespace(static_forward_context=layers)
    return group, SimpleNamespace(compilation_config=compilation), arena


@pytest.mark.usefixtures("_hooked")
def test_a_groups_metadata_has_pieces_once_and_builders_stand_as_before() -> None:
    builder = Builder()
    group, config, arena = engine(1, builder)
    rows: Rows = [(5, 1, []), (0, 9, [4, 6])]
    builder.mamba_aligned_state_indices = aligned = torch.arange(4)
    due = [one._replace(group=1) for one in checkpoints_of(rows)[1]]
    register([arena[:, :2], arena[:, 2:]], [*due, due[0]._replace(group=0)])
    assert prefill_checkpoint.is_any_due()
    drafts = torch.tensor([1, 1])
    for is_first in (True, False):
        builder.calls.clear()
        with runner_hooks._step_of(config, [[group]], ["0", "1"]):
            told: Any = {"num_accepted_tokens": drafts, "num_decode_draft_tokens_cpu": None}
            metadata = group.build_metadata(batch_of(rows), 0, **told)
            assert builder.supports_update_block_table is not is_first
        assert builder.supports_update_block_table
        assert builder.mamba_aligned_state_indices is aligned
        assert builder.decode_cudagraph_max_bs == 8
        if is_first:
            assert len(getattr(metadata, ATTRIBUTE)) == 3
            assert [call["aligned"].tolist() for call in builder.calls[1:]] == [[0, 1], [1], [1]]
            assert [call["most"] for call in builder.calls] == [8, -1, -1, -1]
            assert [len(call["num_accepted_tokens"]) for call in builder.calls] == [2, 2, 1, 1]
            step = getattr(metadata, ATTRIBUTE)[0].step
            assert step.num_unwritten == 4
            step.expect(-4)
        else:
            assert not hasattr(metadata, ATTRIBUTE)
            assert len(builder.calls) == 1
    assert not prefill_checkpoint.is_any_due()


def test_pieces_of_a_request_that_computes_its_answer_again_are_prefills() -> None:
    rows: Rows = [(70, 3, []), (64, 9, [2, 4])]
    group, _, _ = engine(0, Builder())
    batch = batch_of(rows)
    batch.is_prefilling = torch.tensor([False, False])
    found = list(runner_hooks._pieces(group, batch, checkpoints_of(rows), Step([]), {}))
    counted = [one.metadata.part.is_prefilling.tolist() for one in found]
    assert counted == [[False, True], [True], [True]]
    assert not batch.is_prefilling.any()


def test_kernels_on_a_cpu_get_slots_of_pieces_side_by_side() -> None:
    """A decode's table has a column a draft, and vLLM leaves the stride of a single row."""
    rows: Rows = [(0, 9, [4])]
    group, _, _ = engine(0, Builder())
    batch = batch_of(rows)
    batch.block_table_tensor = torch.tensor([[10, 11, 12]], dtype=torch.int32)
    for one in runner_hooks._pieces(group, batch, checkpoints_of(rows), Step([]), {}):
        slots = one.metadata.non_spec_state_indices_tensor
        assert (slots.tolist(), slots.stride()) == ([10], (1,))


def test_a_forward_that_left_a_checkpoint_out_is_an_error() -> None:
    one = PrefillCheckpoint("a", 0, 4, 1, 2)
    arena = torch.zeros(4, 4)
    register([arena], [one])
    with pytest.raises(
        RuntimeError, match=r"did not leave prefill checkpoints of requests \['a'\]"
    ):
        register([arena], [one])
    step = take(arena)
    assert step
    with pytest.raises(RuntimeError, match="outside the batch"):
        step.begin(["b"])
    step.begin(["b", "a"])
    assert step.of_group(0) == {1: [one]}
    assert step.of_group(1) == {}
    step.expect(2)
    step.note_written()
    with pytest.raises(RuntimeError, match="1 states of layers are missing"):
        take(arena)
    assert take(arena) is None


@pytest.mark.usefixtures("_hooked")
def test_no_step_with_checkpoints_runs_a_decodes_graph() -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # noqa: PLC0415

    runner_hooks.install()
    arena = torch.zeros(4, 4)
    assert GPUModelRunner._is_uniform_decode(3, 3, 6, 2)
    register([arena], [PrefillCheckpoint("a", 0, 4, 1, 2)])
    assert not GPUModelRunner._is_uniform_decode(3, 3, 6, 2)
    step = take(arena)
    assert step
    step.begin(["a"])
    assert GPUModelRunner._is_uniform_decode(3, 3, 6, 2)


def test_vllms_own_function_takes_no_checkpoint_for_a_copy() -> None:
    cache = torch.zeros(4, 4)
    with pytest.raises((ValueError, TypeError, IndexError)):
        copy_kv_cache_blocks_inplace([cache], 4, [PrefillCheckpoint("a", 0, 4, 1, 2)])  # type: ignore[list-item]
