"""The pieces of a step's tokens: state layers run piece by piece, and a piece ends at a checkpoint.

A piece is a contiguous slice of the batch's tokens. The rows inside it are whole or cut at an end.
So a state layer sees in a piece what it would see if the cut requests' chunks ended there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybrid_blocks.vllm.worker.prefill_checkpoint import PrefillCheckpoint, Step

ATTRIBUTE = "hybrid_blocks_pieces"
"""Attribute of a layer's metadata that holds the pieces of its step."""

BY_ROW = (
    "block_table_tensor",
    "causal",
    "dcp_local_seq_lens",
    "dcp_local_seq_lens_cpu_upper_bound",
    "is_prefilling",
    "replayssm_decode_base_cpu",
    "req_idx",
    "rswa_prefix_lens",
)
"""Fields of vLLM's metadata of a batch that have an entry a request, besides lengths."""

BY_TOKEN = ("positions", "slot_mapping")
"""Fields that have an entry a token."""

BY_ROW_OF_BUILDERS = ("num_accepted_tokens", "num_decode_draft_tokens_cpu")
"""Further arguments of the builders of states, with an entry a request."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Tokens ``begin`` to ``end`` of a batch, and the rows that they belong to.

    ``length`` is the number of tokens of the last row's request up to the end, if that row is cut.
    """

    begin: int
    end: int
    rows: slice
    length: int | None = None
    checkpoint: PrefillCheckpoint | None = None


class Piece:
    """A cut with the metadata by which layers run it, and the checkpoint that it ends at."""

    def __init__(self, cut: Cut, metadata: Any, *, is_last: bool, step: Step) -> None:
        # The last piece takes what else the layer's tensors hold, as padding does.
        self.tokens = slice(cut.begin, None if is_last else cut.end)
        self.metadata = metadata
        indices = getattr(metadata, "non_spec_state_indices_tensor", None)
        if indices is not None and indices.is_cpu:
            # vLLM's CPU kernel of GatedDeltaNet asks for a stride of 1, even of a single row.
            metadata.non_spec_state_indices_tensor = indices.new_empty(len(indices)).copy_(indices)
        self.src: Any = None
        self.dst: Any = None
        self.step = step
        if one := cut.checkpoint:
            self.src, self.dst = (np.array([id_], np.int32) for id_ in one[3:])


def cut(
    starts: Sequence[int],
    lengths: Sequence[int],
    num_tokens: int,
    checkpoints: Mapping[int, Sequence[PrefillCheckpoint]],
) -> Iterator[Cut]:
    """Cut the tokens of a batch at the checkpoints of its rows.

    Row ``i`` has tokens ``starts[i]`` to ``starts[i + 1]``, and its request ``lengths[i]`` with
    them. ``num_tokens`` counts padding too, which belongs to the last piece. Checkpoints are in the
    order of their positions, each behind a token of its row.
    """
    begin, row, num_rows = 0, 0, len(lengths)
    for at in sorted(checkpoints):
        first, last = starts[at], starts[at + 1]
        for one in checkpoints[at]:
            end = last - lengths[at] + one.position
            if not max(first, begin) < end < last:
                raise ValueError(f"{one} is not inside tokens {max(first, begin)} to {last}")
            # Builders take a row of one token for a decode, and want decodes in front.
            if end == first + 1 and begin < first:
                yield Cut(begin, first, slice(row, at))
                begin = first
            row = at if begin == first else row
            yield Cut(begin, end, slice(row, at + 1), one.position, one)
            begin, row = end, at
    yield Cut(begin, num_tokens, slice(row, num_rows))


def as_prefills(batch: Any, rows: list[int]) -> Any:
    """Return vLLM's metadata of a batch whose ``rows`` count as prefills.

    vLLM's first runner takes a request that computes its answer again for a decode. Builders would
    take a piece of it that is as short as a decode with drafts for one.
    """
    if batch.is_prefilling is None:
        return batch
    is_prefilling = batch.is_prefilling.clone()
    is_prefilling[rows] = True
    return batch.replace(is_prefilling=is_prefilling)


def part_of(batch: Any, piece: Cut) -> Any:
    """Return vLLM's metadata of a batch for the tokens and rows of a piece alone."""
    rows, size = piece.rows, piece.end - piece.begin
    bounds = slice(rows.start, rows.stop + 1)
    starts_cpu = (batch.query_start_loc_cpu[bounds] - piece.begin).clamp_(0, size)
    lengths, lengths_cpu = batch.seq_lens[rows], batch.seq_lens_cpu_upper_bound[rows]
    if piece.length is not None:
        lengths, lengths_cpu = lengths.clone(), lengths_cpu.clone()
        lengths[-1:].fill_(piece.length)
        lengths_cpu[-1:].fill_(piece.length)
    by_row = {name: _sliced(getattr(batch, name, None), rows) for name in BY_ROW}
    tokens = slice(piece.begin, piece.end)
    by_token = {name: _sliced(getattr(batch, name, None), tokens) for name in BY_TOKEN}
    return batch.replace(
        query_start_loc=(batch.query_start_loc[bounds] - piece.begin).clamp_(0, size),
        query_start_loc_cpu=starts_cpu,
        seq_lens=lengths,
        seq_lens_cpu_upper_bound=lengths_cpu,
        num_reqs=rows.stop - rows.start,
        num_actual_tokens=size,
        max_query_len=int(starts_cpu.diff().max()),
        max_seq_len=int(lengths_cpu.max()),
        _num_computed_tokens_cache=None,
        _token_to_req_indices_cache=None,
        **{name: value for name, value in (by_row | by_token).items() if value is not None},
    )


def _sliced(value: Any, part: slice) -> Any:
    """Return a part of an array or tensor, and any other value as it is."""
    return value[part] if hasattr(value, "shape") else value
