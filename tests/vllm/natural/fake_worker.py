"""A worker without a model: what it writes follows from the tokens, and it checks all it reads.

It sees the scheduler's output alone and does with it what vLLM's workers do, in their order: zero,
gather and scatter copies, move states between columns, write, leave prefill checkpoints, read, move
states of accepted drafts.
The content of token ``n`` is a hash of the tokens up to ``n``; the next token follows from it too.
What a drafter's own layers keep of token ``n`` follows from the token after it too.
A request that reads anything but what its own tokens wrote raises `CorruptedError`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any

import numpy as np
from hybrid_blocks.vllm.manager.config import NaturalKVCacheConfig
from hybrid_blocks.vllm.worker.copies import split
from hybrid_blocks.vllm.worker.prefill_checkpoint import PrefillCheckpoint
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

from .fake_worker_memory import NOT_A_NUMBER, STALE, Cells, Ids, Memory

VOCABULARY = 97
_MASK = 2**64 - 1


class CorruptedError(AssertionError):
    """A request read what its tokens did not write."""


class Truth:
    """The tokens of a request, prompt and all it will generate, and the hashes of its prefixes."""

    def __init__(self, prompt: Iterable[int]) -> None:
        self.tokens: list[int] = []
        self.hashes = np.zeros(1, dtype=np.uint64)
        self._hash = 1
        for token in prompt:
            self._append(token)

    def _append(self, token: int) -> None:
        self._hash = ((self._hash ^ (token + 1)) * 0x9E3779B97F4A7C15 + 0x7F4A7C15) & _MASK
        self._hash ^= self._hash >> 29
        self.tokens.append(token)
        if len(self.tokens) >= len(self.hashes):
            self.hashes = np.concatenate([self.hashes, np.zeros_like(self.hashes)])
        # Two values are kept for blocks that hold no content.
        self.hashes[len(self.tokens)] = self._hash >> 1

    def reach(self, length: int) -> None:
        """Generate until ``length`` tokens are known."""
        while len(self.tokens) < length:
            self._append(self._hash % VOCABULARY)

    def __getitem__(self, position: int) -> int:
        self.reach(position + 1)
        return self.tokens[position]

    def after(self, first: int, last: int) -> Cells:
        """Return the hashes of the prefixes of ``first`` to ``last`` tokens."""
        self.reach(last)
        return self.hashes[first : last + 1]

    def with_drafts(self, start: int, tokens: list[int]) -> Cells:
        """Return the hashes of the prefixes that end in each of ``tokens``, from ``start`` on."""
        if all(self[start + i] == token for i, token in enumerate(tokens)):
            return self.after(start + 1, start + len(tokens))
        other = Truth([*self.tokens[:start], *tokens])
        return other.after(start + 1, start + len(tokens))


@dataclass
class Row:
    """A request's row in a worker."""

    truth: Truth
    num_prompt: int
    num_tokens: int
    num_computed: int
    tables: list[list[int]]
    drafts: list[int] = field(default_factory=list)
    num_rejected: int = 0
    num_accepted: int = 1
    column: int | None = None


@dataclass(frozen=True)
class Chunk:
    """The tokens of one request in one step."""

    id_: str
    row: Row
    start: int
    end: int
    drafts: list[int]

    @property
    def positions(self) -> Ids:
        return np.arange(self.start, self.end)

    @cached_property
    def hashes(self) -> Cells:
        """Hashes that the worker writes, one for each token."""
        known = self.end - len(self.drafts)
        told = self.row.truth.after(self.start + 1, known)
        return np.concatenate([told, self.row.truth.with_drafts(known, self.drafts)])

    @property
    def is_decode(self) -> bool:
        """Whether state kernels take it for a verification of drafts, be they none."""
        is_past_prompt = bool(self.drafts) or self.start >= self.row.num_prompt
        return is_past_prompt and self.end - self.start == len(self.drafts) + 1


class FakeWorker:
    """Executes steps. ``num_drafts`` tokens are proposed a step; a share of them is right.

    ``looks_ahead`` says that a block's hash covers the token after it. A hit then holds the result
    of the drafter's layers for that token. Otherwise the check reads only the block of these
    layers.

    ``unowned`` names the units that are free at this moment; they are poisoned. ``zeroes_units``
    is false for vLLM's CPU runner, which zeroes blocks of full attention by their own ids.
    """

    def __init__(
        self,
        config: KVCacheConfig,
        *,
        num_drafts: int = 0,
        share_accepted: float = 0.6,
        is_async: bool = False,
        zeroes_units: bool = True,
        looks_ahead: bool = False,
        unowned: Callable[[], Iterable[int]] = tuple,
        random: Random | None = None,
    ) -> None:
        self.specs: list[Any] = [group.kv_cache_spec for group in config.kv_cache_groups]
        self.states = [i for i, spec in enumerate(self.specs) if isinstance(spec, MambaSpec)]
        self.drafters = [
            i for i, group in enumerate(config.kv_cache_groups) if group.is_eagle_group
        ]
        self.attention = [i for i in range(len(self.specs)) if i not in self.states]
        self.memory = Memory(config, num_columns=1 + num_drafts)
        self.rows: dict[str, Row] = {}
        self.num_checked = 0
        self.num_copies = 0
        self.num_conversions = 0
        self.num_checkpoints = 0
        self.num_freed_sources = 0
        self._config = config
        self._num_drafts = num_drafts
        self._share_accepted = share_accepted
        self._is_async = is_async
        self._zeroes_units = zeroes_units
        self._ahead = [int(looks_ahead and i in self.drafters) for i in range(len(self.specs))]
        self._unowned = unowned
        self._random = random or Random(0)

    def execute(self, output: SchedulerOutput) -> tuple[ModelRunnerOutput, DraftTokenIds]:
        """Execute a step; return what was sampled, and the drafts for the next step."""
        for id_ in output.finished_req_ids:
            self.rows.pop(id_, None)
        plain, converting, checkpoints = split(output.kv_cache_block_copies or [])
        copies = np.array(plain, dtype=np.int64).reshape(-1, 2)
        kept = {self.memory.source_unit(copy) for copy in converting}
        self._poison(copies[:, 0], kept | self._units_of_preempted(output))
        self._update_rows(output)
        self._zero(np.array(output.new_block_ids_to_zero or [], dtype=np.int64))
        self._copy(copies)
        self.memory.convert(converting)
        self.num_conversions += len(converting)
        chunks = [self._chunk(id_, output) for id_ in output.num_scheduled_tokens]
        self._move_states(chunks)
        for chunk in chunks:
            self._write_tokens(chunk)
        self._leave(checkpoints, {chunk.id_: chunk for chunk in chunks})
        for chunk in chunks:
            for group in self.attention:
                if group not in self.drafters:
                    self._check_tokens(group, chunk, chunk.end)
            self._advance_states(chunk)
        sampled = [self._sample(chunk) for chunk in chunks]
        for chunk in chunks:
            self._draft(chunk)
        for chunk in chunks:
            for group in self.drafters:
                self._check_tokens(group, chunk, chunk.start)
        ids = [chunk.id_ for chunk in chunks]
        return (
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={id_: index for index, id_ in enumerate(ids)},
                sampled_token_ids=sampled,
            ),
            DraftTokenIds(ids, [list(chunk.row.drafts) for chunk in chunks]),
        )

    # --- before the forward pass --------------------------------------------

    def _units_of_preempted(self, output: SchedulerOutput) -> set[int]:
        """Return the units of states whose requests this step preempts; the step may copy them."""
        rows = [self.rows[id_] for id_ in output.preempted_req_ids or () if id_ in self.rows]
        units = set[int]()
        for group in self.states:
            ids = np.array([id_ for row in rows for id_ in row.tables[group]], dtype=np.int64)
            units.update(self.memory.layouts[group].unit_and_cell(ids)[0].tolist())
        return units

    def _poison(self, sources: Ids, kept: set[int]) -> None:
        # The scheduler names a conversion once. From then on no request owns the state it left.
        free = set(self._unowned())
        freed = free & set(sources.tolist())
        if freed - kept and isinstance(self._config, NaturalKVCacheConfig):
            raise CorruptedError(f"units {sorted(freed - kept)} are free and to be copied from")
        # vLLM frees a source with its request. No other has it before the step has run.
        self.num_freed_sources += len(freed)
        self.memory.fill(np.array(sorted(free - freed - kept), dtype=np.int64), NOT_A_NUMBER)

    def _update_rows(self, output: SchedulerOutput) -> None:
        for new in output.scheduled_new_reqs:
            prompt = new.prompt_token_ids or []
            row = self._row(Truth(prompt), len(prompt), len(prompt), new.num_computed_tokens)
            self.rows[new.req_id] = row
            self._hand_out(row, new.block_ids)
        cached = output.scheduled_cached_reqs
        for index, id_ in enumerate(cached.req_ids):
            row = self.rows[id_]
            computed = cached.num_computed_tokens[index]
            if id_ in cached.resumed_req_ids:
                num_tokens = row.num_prompt + cached.num_output_tokens[index]
                row = self._row(row.truth, row.num_prompt, num_tokens, computed)
                self.rows[id_] = row
            elif computed not in (row.num_computed, row.num_computed + self._optimism(row)):
                raise CorruptedError(
                    f"request {id_}: {row.num_computed} tokens are computed, not {computed}"
                )
            if (new_ids := cached.new_block_ids[index]) is not None:
                self._hand_out(row, new_ids)

    def _row(self, truth: Truth, num_prompt: int, num_tokens: int, num_computed: int) -> Row:
        return Row(truth, num_prompt, num_tokens, num_computed, [[] for _ in self.specs])

    def _optimism(self, row: Row) -> int:
        """Return how far an asynchronous scheduler counts ahead: it does not know of rejections."""
        return row.num_rejected if self._is_async else 0

    def _hand_out(self, row: Row, new_ids: tuple[list[int], ...]) -> None:
        for group, (table, ids) in enumerate(zip(row.tables, new_ids, strict=True)):
            first = -(-row.num_computed // self.specs[group].block_size) - len(table)
            fresh = sorted(set(ids[max(0, first) :]) - {0, *table})
            self.memory.make_stale(group, np.array(fresh, dtype=np.int64))
            table.extend(ids)

    def _zero(self, ids: Ids) -> None:
        if self._zeroes_units:
            self.memory.zero(ids)
            return
        for group in self.attention:
            if isinstance(self.specs[group], FullAttentionSpec):
                self.memory.zero_blocks(group, ids)

    def _copy(self, copies: Ids) -> None:
        self.num_copies += len(copies)
        if len(copies) and not 0 < copies.min() <= copies.max() < self._config.num_blocks:
            raise CorruptedError(f"copies {copies.tolist()} name units that are not there")
        self.memory.copy(copies[:, 0], copies[:, 1])

    def _chunk(self, id_: str, output: SchedulerOutput) -> Chunk:
        row = self.rows[id_]
        num_drafts = len(output.scheduled_spec_decode_tokens.get(id_, ()))
        # A prompt whose last token alone is left gets made-up drafts, to be rejected.
        drafts = (row.drafts + [VOCABULARY] * num_drafts)[:num_drafts]
        chunk = Chunk(
            id_, row, row.num_computed, row.num_computed + output.num_scheduled_tokens[id_], drafts
        )
        known = chunk.end - num_drafts
        if known > row.num_tokens:
            raise CorruptedError(
                f"request {id_}: {known} tokens are scheduled, {row.num_tokens} are known"
            )
        return chunk

    def _move_states(self, chunks: list[Chunk]) -> None:
        """Move states to the columns of this step, as ``preprocess_mamba``."""
        moves = []
        for chunk in chunks:
            row = chunk.row
            for group in self.states[:1]:
                spec = self.specs[group]
                if spec.mamba_cache_mode != "align":
                    row.column = 0
                    continue
                before = row.column
                if before is None:
                    before = (row.num_computed - 1) // spec.block_size
                row.column = -(-chunk.end // spec.block_size) - 1
                if before not in (-1, row.column):
                    moves.append((row, before, row.column, row.num_accepted - 1))
                    row.num_accepted = 1
        self._carry_out(moves)

    def _carry_out(self, moves: list[tuple[Row, int, int, int]]) -> None:
        """Copy states between columns; all are read before any is written."""
        read = []
        for row, source, destination, bias in moves:
            for group in self.states:
                table = row.tables[group]
                window = self.memory.window(group, table[source])[bias:].copy()
                state = self.memory.state(group, table[source + bias]).copy()
                read.append((group, table[destination], window, state))
        for group, id_, window, state in read:
            self.memory.window(group, id_)[: len(window)] = window
            self.memory.state(group, id_)[:] = state

    # --- the forward pass ---------------------------------------------------

    def _blocks(self, group: int, chunk: Chunk, positions: Ids) -> tuple[Ids, Ids]:
        """Return the block and the offset in it of each position."""
        size = self.specs[group].block_size
        table = np.array(chunk.row.tables[group], dtype=np.int64)
        columns = positions // size
        if columns[-1] >= len(table) or not (ids := table[columns]).all():
            raise CorruptedError(
                f"request {chunk.id_}: group {group} has no block for some of tokens "
                f"{positions[0]} to {positions[-1]}: {table.tolist()}"
            )
        return ids, positions % size

    def _write_tokens(self, chunk: Chunk) -> None:
        for group in self.attention:
            ids, offsets = self._blocks(group, chunk, chunk.positions)
            if group not in self.drafters:
                self.memory.write_tokens(group, ids, offsets, chunk.hashes)

    def _first_seen(self, group: int, start: int) -> int:
        """Return the first token that the query at ``start`` looks at."""
        match self.specs[group]:
            case SlidingWindowSpec(sliding_window=window):
                return max(0, start - window + 1)
            case ChunkedLocalAttentionSpec(attention_chunk_size=size):
                return start // size * size
            case _:
                return 0

    def _check_tokens(self, group: int, chunk: Chunk, end: int) -> None:
        """Check what a chunk reads in a group, up to ``end``."""
        first = self._first_seen(group, chunk.start)
        if first >= end:
            return
        positions = np.arange(first, end)
        ids, offsets = self._blocks(group, chunk, positions)
        cells = self.memory.read_tokens(group, ids, offsets)
        ahead = self._ahead[group]
        before = chunk.row.truth.after(first + 1 + ahead, chunk.start + ahead)
        expected = np.concatenate([before, chunk.hashes[: end - chunk.start]])
        wrong = np.flatnonzero(cells != expected)
        if len(wrong):
            position = positions[wrong[0]]
            raise CorruptedError(
                f"request {chunk.id_}: group {group}, block {ids[wrong[0]]} does not hold "
                f"token {position} ({len(wrong)} of {len(positions)} tokens are wrong)"
            )
        size = self.specs[group].block_size
        if self._config.needs_kv_cache_zeroing and self.memory.has_poison(
            group, np.unique(ids), size
        ):
            raise CorruptedError(
                f"request {chunk.id_}: group {group}, one of blocks {np.unique(ids).tolist()} "
                "was not zeroed"
            )
        self.num_checked += len(positions)

    def _advance_states(self, chunk: Chunk) -> None:
        row = chunk.row
        column = row.column or 0
        offset = row.num_accepted - 1 if chunk.is_decode and self._num_drafts else 0
        for group in self.states:
            slots = row.tables[group][column : column + 1 + self._num_drafts]
            used = slots[: len(chunk.drafts) + 1] if chunk.is_decode else slots[:1]
            if not used or 0 in used or len(slots) <= offset:
                raise CorruptedError(
                    f"request {chunk.id_}: group {group} has no state slot in some of columns "
                    f"{column} to {column + len(chunk.drafts)}: {row.tables[group]}"
                )
            window = self.memory.window(group, slots[0])
            if chunk.start:
                expected = row.truth.hashes[chunk.start]
                state = self.memory.state(group, slots[offset])
                if window[offset] != expected or (state != expected).any():
                    raise CorruptedError(
                        f"request {chunk.id_}: group {group}, slot {slots[offset]} does not hold "
                        f"the state after {chunk.start} tokens"
                    )
                self.num_checked += 1
            # A plain chunk leaves its last state alone; a decode leaves one after each token.
            kept = chunk.hashes if chunk.is_decode else chunk.hashes[-1:]
            for number, value in enumerate(kept):
                window[number] = value
                self.memory.state(group, slots[number])[:] = value

    def _leave(self, checkpoints: Iterable[PrefillCheckpoint], chunks: Mapping[str, Chunk]) -> None:
        """Leave the states after tokens inside chunks of prompts."""
        for id_, group, position, source, destination in checkpoints:
            chunk = chunks[id_]
            slot = chunk.row.tables[group][chunk.row.column or 0]
            if chunk.is_decode or source != slot or not chunk.start < position < chunk.end:
                raise CorruptedError(
                    f"request {id_}: group {group} cannot leave the state in slot {source} after "
                    f"{position} tokens, of tokens {chunk.start} to {chunk.end} in slot {slot}"
                )
            window = self.memory.window(group, destination)
            window[:] = self.memory.window(group, source)
            window[0] = self.memory.state(group, destination)[:] = chunk.row.truth.hashes[position]
            self.num_checkpoints += 1

    # --- after the forward pass ---------------------------------------------

    def _draft(self, chunk: Chunk) -> None:
        """Run the drafter's layers: over what was accepted, then over its own drafts."""
        row = chunk.row
        for group in self.drafters:
            ahead = self._ahead[group]
            if row.num_computed > chunk.start:
                ids, offsets = self._blocks(group, chunk, np.arange(chunk.start, row.num_computed))
                hashes = row.truth.after(chunk.start + 1 + ahead, row.num_computed + ahead)
                self.memory.write_tokens(group, ids, offsets, hashes)
            size = self.specs[group].block_size
            for position in range(row.num_computed, row.num_computed + self._num_drafts - 1):
                table = row.tables[group]
                if position // size < len(table) and (block := table[position // size]):
                    place = np.array([block]), np.array([position % size])
                    self.memory.write_tokens(group, *place, np.array([STALE]))

    def _sample(self, chunk: Chunk) -> list[int]:
        row, drafts = chunk.row, chunk.drafts
        row.drafts = []
        num_right = 0
        if chunk.end - len(drafts) < row.num_tokens:
            row.num_computed, row.num_rejected, row.num_accepted = chunk.end, 0, 1
            self._keep_aligned_state(chunk)
            return []
        while (
            num_right < len(drafts) and row.truth[row.num_tokens + num_right] == drafts[num_right]
        ):
            num_right += 1
        sampled = [row.truth[row.num_tokens + i] for i in range(num_right + 1)]
        row.num_rejected = len(drafts) - num_right
        row.num_computed = chunk.end - row.num_rejected
        row.num_tokens += len(sampled)
        row.num_accepted = len(sampled)
        self._keep_aligned_state(chunk)
        row.drafts = self._propose(row)
        return sampled

    def _keep_aligned_state(self, chunk: Chunk) -> None:
        """Move the state at a block's end to its column, as ``postprocess_mamba_align_gpu``."""
        row = chunk.row
        if not self._num_drafts or not self.states:
            return
        spec = self.specs[self.states[0]]
        if spec.mamba_cache_mode != "align":
            return
        running = chunk.end - len(chunk.drafts)
        aligned = (running + row.num_accepted - 1) // spec.block_size * spec.block_size
        if aligned < running:
            return
        bias, destination = aligned - running, aligned // spec.block_size - 1
        source = row.column or 0
        if source == destination:
            row.num_accepted = 1
        if (source, bias) != (destination, 0):
            self._carry_out([(row, source, destination, bias)])

    def _propose(self, row: Row) -> list[int]:
        count = self._num_drafts if self._is_async else self._random.randint(0, self._num_drafts)
        return [
            (row.truth[row.num_tokens + i] + (self._random.random() > self._share_accepted))
            % VOCABULARY
            for i in range(count)
        ]
