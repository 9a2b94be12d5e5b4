"""``HYBRID_BLOCKS_CHECK=1``: every hit, copy, zeroing and hand-out is checked against the past.

Workers carry out the scheduler's output, so the check reads it after each step: blocks handed to
requests, blocks to zero, copies. The check remembers for each block whose tokens its content
follows from. The managers' own books are not used, so the check holds at any level. A step that
hands out no block costs a look at the output.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig

from hybrid_blocks.errors import IntegrityError
from hybrid_blocks.vllm.check.life import Content, Group, Life, group_of
from hybrid_blocks.vllm.worker.copies import ConvertingCopy, split
from hybrid_blocks.vllm.worker.prefill_checkpoint import PrefillCheckpoint

Slot = tuple[int, int]
"""A pool and a block in it."""

Holder = tuple[Life, Group, int]
"""A request with a block in its table, the group and the column."""


class Provenance:
    """Remembers whose tokens the content of each block follows from.

    ``requests`` are the scheduler's, by id. ``dcp_world_size`` ranks share out each block of
    attention. ``zeroes_blocks`` says that ids to zero name blocks of full attention, not slabs.
    """

    def __init__(
        self,
        config: KVCacheConfig,
        hash_block_size: int,
        requests: Mapping[str, Any],
        *,
        num_drafts: int = 0,
        dcp_world_size: int = 1,
        is_async: bool = False,
        zeroes_blocks: bool = False,
    ) -> None:
        self._requests = requests
        self._hash_block_size = hash_block_size
        self._num_drafts = num_drafts
        # Drafts in flight may be rejected after a copy reads the blocks of their step.
        self._is_exact = not (is_async and num_drafts)
        self._zeroes_blocks = zeroes_blocks
        self._groups = [
            group_of(config, number, dcp_world_size)
            for number in range(len(config.kv_cache_groups))
        ]
        self._per_slab = {group.pool: group.per_slab for group in self._groups}
        self._per_slab |= {group.kept_pool: group.kept_per_slab for group in self._groups}
        # All groups of states have blocks of one size, of one pool.
        states = [group for group in self._groups if group.is_state]
        self._state_pool = states[0].pool if states else 0
        self._state_size = states[0].block_size if states else 1
        self._lives: dict[str, Life] = {}
        self._contents: dict[Slot, Content] = {}
        self._holders: dict[Slot, list[Holder]] = {}
        self._slab_pools: dict[int, int] = {}
        self._held: list[tuple[Slot, Holder]] = []
        self._fresh: dict[Slot, Holder] = {}
        self._copied: set[Slot] = set()
        self._scheduled: Mapping[str, int] = {}
        self.num_checked = 0

    # --- a step -------------------------------------------------------------

    def check(self, output: SchedulerOutput) -> None:
        """Check a step's output and remember what it changes.

        Raises ``IntegrityError`` that names request, group and block.
        """
        self._scheduled = output.num_scheduled_tokens
        for id_ in output.finished_req_ids:
            self._end(id_)
        for id_ in output.preempted_req_ids or ():
            self._end(id_)
        starts = self._follow_tables(output)
        if output.new_block_ids_to_zero:
            self._check_zeroing(output.new_block_ids_to_zero)
        plain, converting, checkpoints = split(output.kv_cache_block_copies or ())
        if plain or converting:
            self._check_copies([*plain, *converting])
        for id_, computed in starts:
            if computed:
                self._check_hit(self._lives[id_], computed)
        for checkpoint in checkpoints:
            self._check_checkpoint(checkpoint, output.scheduled_spec_decode_tokens)
        if self._fresh or self._copied:
            self._note_written()
        if self._num_drafts or output.total_num_scheduled_tokens > len(self._scheduled):
            self._note_lengths(output.scheduled_spec_decode_tokens)

    def _follow_tables(self, output: SchedulerOutput) -> list[tuple[str, int]]:
        """Take in what requests were handed; return who starts, and after how many tokens."""
        starts = []
        for new in output.scheduled_new_reqs:
            if life := self._lives.get(new.req_id):
                # The next input of a session, which kept its blocks.
                self._hand_out(life, life.added(new.block_ids), new.num_computed_tokens)
                continue
            self._begin(new.req_id, new.num_computed_tokens, new.block_ids)
            starts.append((new.req_id, new.num_computed_tokens))
        cached = output.scheduled_cached_reqs
        changed = cached.new_block_ids
        if changed.count(None) < len(changed):
            for index, new_ids in enumerate(changed):
                if new_ids is None:
                    continue
                id_, computed = cached.req_ids[index], cached.num_computed_tokens[index]
                if id_ in cached.resumed_req_ids:
                    self._begin(id_, computed, new_ids)
                    starts.append((id_, computed))
                else:
                    self._hand_out(self._lives[id_], new_ids, computed)
        for slot, holder in self._held:
            if holders := self._holders.get(slot):
                holders.append(holder)
            else:
                self._holders[slot] = [holder]
        self._held.clear()
        return starts

    def preempt(self, request: Any) -> None:
        """Note how far a request came that is about to start again."""
        if life := self._lives.get(request.request_id):
            life.final = request.num_computed_tokens

    def give_up(self, id_: str, written: int) -> None:
        """Note that a session lets go of its blocks after ``written`` tokens, to start again."""
        if life := self._lives.get(id_):
            life.final = written
            self._end(id_)

    def _note_written(self) -> None:
        for slot, holder in self._fresh.items():
            self._contents[slot] = Content(*holder)
        self._fresh = {}
        self._copied = set()

    def _note_lengths(self, drafts: Mapping[str, list[int]]) -> None:
        """Remember where chunks end, and what a running state's first slot holds after them."""
        scheduled: Iterable[tuple[str, int]] = self._scheduled.items()
        if not self._num_drafts:
            scheduled = [(id_, count) for id_, count in scheduled if count > 1]
        for id_, count in scheduled:
            life = self._lives[id_]
            num_drafts = len(drafts.get(id_, ()))
            life.note_chunk(life.request.num_computed_tokens, num_drafts, count)

    # --- lives --------------------------------------------------------------

    def _begin(self, id_: str, computed: int, ids: Iterable[list[int]]) -> None:
        self._end(id_)
        tables: list[list[int]] = [[] for _ in self._groups]
        self._lives[id_] = life = Life(self._requests[id_], tables, self._state_size)
        self._hand_out(life, ids, computed)

    def _end(self, id_: str) -> None:
        life = self._lives.pop(id_, None)
        if life is None:
            return
        if life.final is None:
            life.final = life.request.num_computed_tokens
        for group, table in zip(self._groups, life.tables, strict=True):
            for block in table:
                slot = group.pool, block
                holders = self._holders.get(slot)
                if holders is None:
                    continue
                if others := [holder for holder in holders if holder[0] is not life]:
                    holders[:] = others
                else:
                    del self._holders[slot]

    def _num_before(self, life: Life) -> int:
        """Return how many tokens a life had computed before the step at hand."""
        if life.final is not None:
            return life.final
        request = life.request
        return int(request.num_computed_tokens - self._scheduled.get(request.request_id, 0))

    def _reader(self, slot: Slot) -> Holder | None:
        """Return who still reads a block; who does not any more holds it no longer."""
        holders = self._holders.get(slot)
        if holders is None:
            return None
        for holder in holders:
            life, group, column = holder
            if column >= group.first_needed(self._num_before(life)):
                return holder
        del self._holders[slot]
        return None

    # --- hand-outs and zeroing ----------------------------------------------

    def _hand_out(self, life: Life, new_ids: Iterable[list[int]], computed: int) -> None:
        """Blocks of a hit are shared; no request may still read any other block."""
        for group, table, ids in zip(self._groups, life.tables, new_ids, strict=True):
            # A partly filled block is the request's own copy.
            first_own = computed // group.block_size
            for column, block in enumerate(ids, len(table)):
                if not block:
                    continue
                slot, holder = (group.pool, block), (life, group, column)
                self._held.append((slot, holder))
                if column >= first_own:
                    # Slots of drafts move on in the table with the state that they follow.
                    if not (group.is_state and block in table):
                        self._take(slot, life, group)
                    self._fresh[slot] = holder
            table.extend(ids)

    def _take(self, slot: Slot, life: Life, group: Group) -> None:
        self.num_checked += 1
        # Another request of this step may hit a block handed out here, and holds it only then.
        if holder := self._fresh.get(slot) or self._reader(slot):
            raise _error(life, group, slot, f"is handed out while {_name(*holder)} reads it")
        self._claim_slab(slot, life, group)
        self._contents.pop(slot, None)

    def _claim_slab(self, slot: Slot, life: Life, group: Group) -> None:
        """Let a slab be of a block's pool; no request may read a block that lay there before."""
        slab = slot[1] // self._per_slab[slot[0]]
        owner = self._slab_pools.get(slab)
        if owner is not None and owner != slot[0]:
            for other in self._slots_of(slab, owner):
                if holder := self._reader(other):
                    raise _error(
                        life,
                        group,
                        slot,
                        f"lies in slab {slab}, where {_name(*holder)} reads block {other[1]}",
                    )
                self._contents.pop(other, None)
        self._slab_pools[slab] = slot[0]

    def _slots_of(self, slab: int, pool: int) -> Iterable[Slot]:
        size = self._per_slab[pool]
        return ((pool, block) for block in range(slab * size, (slab + 1) * size))

    def _check_zeroing(self, ids: Iterable[int]) -> None:
        """Check that zeroed blocks are new to the requests that hold them."""
        for id_ in ids:
            if self._zeroes_blocks:
                pools = {group.pool for group in self._groups if group.is_zeroed}
                slots: Iterable[Slot] = ((pool, id_) for pool in pools)
            else:
                slots = (slot for pool in self._per_slab for slot in self._slots_of(id_, pool))
            for slot in slots:
                self.num_checked += 1
                if slot in self._fresh:
                    continue
                if holder := self._reader(slot):
                    raise _error(*holder[:2], slot, "is zeroed while it is read")
                self._contents.pop(slot, None)

    # --- copies and hits ----------------------------------------------------

    def _slots_of_copy(self, copy: Any) -> tuple[Slot, Slot]:
        """Return the source and the destination of a copy; one that converts is of two pools."""
        pools = self._state_pool, self._state_pool
        if isinstance(copy, ConvertingCopy):
            group = self._groups[copy.group]
            pools = group.pool, group.kept_pool
            pools = pools if copy.keeps else pools[::-1]
        return (pools[0], copy[0]), (pools[1], copy[1])

    def _check_copies(self, copies: list[Any]) -> None:
        """All sources are read before any destination is written."""
        slots = [self._slots_of_copy(copy) for copy in copies]
        sources = {source for source, _ in slots}
        read = []
        for copy, (source, slot) in zip(copies, slots, strict=True):
            if slot in self._copied or slot in sources:
                raise IntegrityError(
                    f"block {slot[1]} is the destination of a copy, and of another or a source"
                )
            self._copied.add(slot)
            content = self._contents.get(source)
            if content is None:
                raise IntegrityError(
                    f"block {source[1]} is copied to block {slot[1]}, and nothing is known of its "
                    "content"
                )
            if isinstance(copy, ConvertingCopy) and content.group.number != copy.group:
                raise IntegrityError(
                    f"block {source[1]} is converted as a state of group {copy.group}, and group "
                    f"{content.group.number} wrote it"
                )
            read.append((content, self._length(content), slot))
        for content, length, slot in read:
            self.num_checked += 1
            if slot in self._fresh:
                self._check_content(content, length, self._fresh[slot], slot)
            elif holder := self._reader(slot):
                raise _error(*holder[:2], slot, "is overwritten by a copy while it is read")
            else:
                self._claim_slab(slot, content.life, content.group)
                self._contents[slot] = replace(content, length=length)

    def _check_checkpoint(
        self, checkpoint: PrefillCheckpoint, drafts: Mapping[str, list[int]]
    ) -> None:
        """Check a state that this step's forward leaves. No hit of the step may read it yet."""
        self.num_checked += 1
        id_, group = checkpoint.request_id, self._groups[checkpoint.group]
        slot, life = (group.pool, checkpoint.dst_block), self._lives.get(id_)
        if life is None or id_ not in self._scheduled:
            raise IntegrityError(f"request {id_} leaves a checkpoint and computes nothing")
        start = self._num_before(life)
        known = start + self._scheduled[id_] - len(drafts.get(id_, ()))
        if not start < checkpoint.position < known:
            what = f"is to hold a state after {checkpoint.position} tokens"
            raise _error(life, group, slot, f"{what}, of a chunk from {start} to {known}")
        if not group.is_state or life.tables[group.number][:1] != [checkpoint.src_block]:
            raise _error(life, group, slot, f"is to hold the state of block {checkpoint.src_block}")
        if slot in self._fresh or slot in self._copied:
            raise _error(life, group, slot, "is to hold a checkpoint and more of the same step")
        if holder := self._reader(slot):
            raise _error(*holder[:2], slot, "is to hold a checkpoint while it is read")
        self._copied.add(slot)
        self._claim_slab(slot, life, group)
        self._contents[slot] = Content(life, group, 0, checkpoint.position)

    def _length(self, content: Content) -> int | None:
        """Return how many tokens a state is after, before the step at hand."""
        if content.length is not None or not self._is_exact:
            return content.length
        return content.life.state_length(content.column, self._num_before(content.life))

    def _check_hit(self, life: Life, computed: int) -> None:
        """Check that a request resumes from content that its own tokens would have written."""
        for group, table in zip(self._groups, life.tables, strict=True):
            if not group.is_cached:
                continue
            last = (computed - 1) // group.block_size
            first = last if group.is_state else group.first_needed(computed)
            for column in range(last, first - 1, -1):
                self.num_checked += 1
                slot = group.pool, table[column]
                if slot in self._copied:
                    continue
                content = self._contents.get(slot)
                if (fresh := self._fresh.get(slot)) and not group.is_state:
                    # All requests of a step write their tokens before any reads.
                    content = Content(*fresh)
                if not table[column] or content is None:
                    raise _error(life, group, slot, f"stands for tokens up to {computed} unwritten")
                length = self._length(content) if group.is_state else None
                self._check_content(content, length, (life, group, column), slot)

    def _check_content(
        self, content: Content, length: int | None, reader: Holder, slot: Slot
    ) -> None:
        """Check that a block holds what a request reads in a column."""
        life, group, column = reader
        computed = self._num_before(life)
        other = content.life
        if content.group is not group:
            raise _error(life, group, slot, f"holds what group {content.group.number} wrote")
        if group.is_state:
            end = computed
            if length is not None and length != end:
                held = "no state at a border" if length < 0 else f"a state after {length} tokens"
                raise _error(life, group, slot, f"holds {held}, not after {end}")
        else:
            end = min(computed, (column + 1) * group.block_size)
            if content.column != column:
                raise _error(life, group, slot, f"stands at {column}, written at {content.column}")
            if other.num_written < end:
                raise _error(life, group, slot, f"is read to {end} and {_id(other)} wrote less")
        if not life.agrees(other, end, self._hash_block_size):
            raise _error(life, group, slot, f"holds other tokens than its own, of {_id(other)}")


def _id(life: Life) -> str:
    return f"request {life.request.request_id}"


def _name(life: Life, group: Group, column: int) -> str:
    return f"{_id(life)} (group {group.number}, column {column})"


def _error(life: Life, group: Group, slot: Slot, what: str) -> IntegrityError:
    return IntegrityError(f"{_id(life)}, group {group.number}: block {slot[1]} {what}")
