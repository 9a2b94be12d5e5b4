"""The device of ``--verify-data`` notices every block that holds another one's content."""

import numpy as np
import numpy.typing as npt
import pytest
from hybrid_blocks.replay.tagged_arena import TagError, TaggedArena, TaggedGroup
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

Int32s = npt.NDArray[np.int32]

SLAB = 480
ATTENTION = TaggedGroup(layer_bytes=(40, 56), block_stride=SLAB // 5)
STATE = TaggedGroup(layer_bytes=(24, 200, 8), block_stride=SLAB // 2)


def int32s(*values: int) -> Int32s:
    return np.array(values, np.int32)


def tags(*values: int) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    return np.array(values, np.uint64)


def arena(slabs: int = 4) -> TaggedArena:
    return TaggedArena(slabs, SLAB, [ATTENTION, STATE])


def test_a_view_has_the_ids_of_its_geometry() -> None:
    attention, state = arena().groups
    assert (attention.num_blocks, state.num_blocks) == (20, 8)
    assert (attention.record_bytes, state.record_bytes) == (96, 232)


def test_a_block_read_under_another_tag_is_an_error_that_names_both() -> None:
    store = arena()
    store.write(0, int32s(7, 8), tags(0xAA, 0xBB))
    store.check(0, int32s(8, 7), tags(0xBB, 0xAA))
    with pytest.raises(TagError, match="block 8 layer 0 word 0: written under tag 0xaa, holds tag"):
        store.check(0, int32s(8), tags(0xAA))


def test_a_block_that_was_never_written_is_an_error() -> None:
    with pytest.raises(TagError, match="group 1 block 3"):
        arena().check(1, int32s(3), tags(0))


def test_layers_that_were_swapped_are_an_error() -> None:
    store = TaggedArena(1, SLAB, [TaggedGroup(layer_bytes=(16, 16), block_stride=32)])
    store.write(0, int32s(2), tags(5))
    block = store.bytes.view(-1, 2, 16)[2]
    block.copy_(block.flip(0))
    with pytest.raises(TagError, match="block 2 layer 0"):
        store.check(0, int32s(2), tags(5))


def test_writing_into_a_slab_of_another_group_is_noticed() -> None:
    store = arena()
    store.write(1, int32s(2), tags(9))  # slab 1
    store.write(0, int32s(5), tags(1))  # slab 1 as well
    with pytest.raises(TagError, match="group 1 block 2 layer 0"):
        store.check(1, int32s(2), tags(9))


def test_granule_views_lie_over_one_another() -> None:
    wide = TaggedGroup(layer_bytes=(240, 240), block_stride=96)
    store = TaggedArena(4, SLAB, [ATTENTION, wide])
    store.write(1, int32s(5), tags(3))
    assert store.groups[1].num_blocks == 16
    store.copy(1, int32s(5), int32s(10))
    store.check(1, int32s(10), tags(3))
    with pytest.raises(ValueError, match="overlap in memory"):
        store.copy(1, int32s(5), int32s(8))


def test_sizes_that_are_no_whole_words_are_refused() -> None:
    with pytest.raises(ValueError, match="12 bytes are not whole words of 8 bytes"):
        TaggedGroup(layer_bytes=(12,), block_stride=16)


class ArenaMachine(RuleBasedStateMachine):
    """Writes, forks, evictions and offload against a dictionary of tags."""

    @initialize()
    def start(self) -> None:
        self.store = arena(6)
        self.owner: dict[int, int] = {}  # slab -> group
        self.held: dict[tuple[int, int], int] = {}  # (group, block) -> tag
        self.next_tag = 1

    def per_slab(self, group: int) -> int:
        return (5, 2)[group]

    def blocks_of(self, group: int) -> list[int]:
        per = self.per_slab(group)
        slabs = [slab for slab, owner in self.owner.items() if owner == group]
        return [slab * per + index for slab in slabs for index in range(per)]

    @rule(slab=st.integers(0, 5), group=st.integers(0, 1))
    def give_slab(self, slab: int, group: int) -> None:
        """Evict what the slab held and give it to ``group``."""
        owner = self.owner.get(slab)
        if owner is not None:
            per = self.per_slab(owner)
            for index in range(per):
                self.held.pop((owner, slab * per + index), None)
        self.owner[slab] = group

    @rule(group=st.integers(0, 1), data=st.data())
    def write(self, group: int, data: st.DataObject) -> None:
        blocks = self.blocks_of(group)
        if blocks:
            ids = data.draw(st.lists(st.sampled_from(blocks), max_size=4, unique=True))
            fresh = list(range(self.next_tag, self.next_tag + len(ids)))
            self.next_tag += len(ids)
            self.store.write(group, int32s(*ids), tags(*fresh))
            self.held |= {(group, block): tag for block, tag in zip(ids, fresh, strict=True)}

    @rule(group=st.integers(0, 1), data=st.data())
    def fork(self, group: int, data: st.DataObject) -> None:
        """Copy in list order, so that a destination may be a later source."""
        written = sorted(block for owner, block in self.held if owner == group)
        if written:
            count = data.draw(st.integers(1, 5))
            src: list[int] = []
            dst: list[int] = []
            for _ in range(count):
                known = sorted({*written, *dst})
                src.append(data.draw(st.sampled_from(known)))
                dst.append(data.draw(st.sampled_from(self.blocks_of(group))))
            self.store.copy(group, int32s(*src), int32s(*dst))
            for source, target in zip(src, dst, strict=True):
                self.held[group, target] = self.held[group, source]

    @rule(group=st.integers(0, 1), data=st.data())
    def offload_and_restore_elsewhere(self, group: int, data: st.DataObject) -> None:
        written = sorted(block for owner, block in self.held if owner == group)
        if written:
            ids = data.draw(st.lists(st.sampled_from(written), min_size=1, max_size=4, unique=True))
            wanted = [self.held[group, block] for block in ids]
            staging = self.store.offload(group, int32s(*ids))
            self.store.zero(group, int32s(*ids))
            for block in ids:
                del self.held[group, block]
            places = data.draw(st.permutations(self.blocks_of(group)))[: len(ids)]
            self.store.restore(group, int32s(*places), staging)
            self.held |= {(group, p): tag for p, tag in zip(places, wanted, strict=True)}

    @invariant()
    def every_block_holds_the_state_written_to_it(self) -> None:
        for group in (0, 1):
            mine = {block: tag for (owner, block), tag in self.held.items() if owner == group}
            self.store.check(group, int32s(*mine), tags(*mine.values()))


TestArenaMachine = ArenaMachine.TestCase
