"""``HYBRID_BLOCKS_CHECK=1`` names request, group and block of whatever is not as it must be."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hybrid_blocks._core.vllm import Blocks
from hybrid_blocks.errors import IntegrityError
from hybrid_blocks.vllm import check
from hybrid_blocks.vllm.level import CHECK, Level, is_checked
from hybrid_blocks.vllm.scheduler import hooks
from hybrid_blocks.vllm.worker.copies import ConvertingCopy
from hybrid_blocks.vllm.worker.prefill_checkpoint import PrefillCheckpoint
from installed import installed
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from .test_fake_worker import MIXES, live

LEVELS = [Level.OFF, Level.MANAGER, Level.NATURAL]
NUM_STEPS = 3_000


class Fault:
    """Plants one violation, the first time that it can."""

    def __init__(self, plant: Callable[["Fault", SchedulerOutput], bool]) -> None:
        self.plant = plant
        self.tables: dict[str, list[list[int]]] = {}
        self.kept: dict[int, int] = {}
        self.done = False

    def __call__(self, output: SchedulerOutput) -> None:
        for id_ in (*output.finished_req_ids, *(output.preempted_req_ids or ())):
            self.tables.pop(id_, None)
        if not self.done:
            self.done = self.plant(self, output)
        for new in output.scheduled_new_reqs:
            self.tables[new.req_id] = [list(ids) for ids in new.block_ids]

    def held(self, group: int, besides: str) -> list[int]:
        """Return blocks that running requests read."""
        return [
            it for id_, table in self.tables.items() if id_ != besides for it in table[group] if it
        ]


def hit_of_another(fault: Fault, output: SchedulerOutput) -> bool:
    """A request that hits is given a block of somebody else's tokens."""
    for new in output.scheduled_new_reqs:
        others = [block for block in fault.held(0, new.req_id) if block not in new.block_ids[0]]
        if new.num_computed_tokens >= 16 and others:
            new.block_ids[0][0] = others[-1]
            return True
    return False


def hand_out_in_use(group: int, fault: Fault, output: SchedulerOutput) -> bool:
    """A new block or state is one that another request reads."""
    for new in output.scheduled_new_reqs:
        others = fault.held(group, new.req_id)
        if not new.num_computed_tokens and others:
            new.block_ids[group][0] = others[-1]
            return True
    return False


def zero_what_is_read(fault: Fault, output: SchedulerOutput) -> bool:
    """A block that a request reads is zeroed."""
    if output.new_block_ids_to_zero and (held := fault.held(0, "")):
        output.new_block_ids_to_zero.append(held[0])
        return True
    return False


def copy_from_another(_: Fault, output: SchedulerOutput) -> bool:
    """Two forks get each other's source."""
    copies = output.kv_cache_block_copies or []
    new = {id_ for one in output.scheduled_new_reqs for ids in one.block_ids[1:] for id_ in ids}
    forks = [copy for copy in copies if copy[1] in new]
    for fork in forks:
        others = [copy for copy in copies if copy[0] != fork[0]]
        if others:
            copies[copies.index(fork)] = type(fork)(others[0][0], fork[1])
            return True
    return False


def copy_onto_a_state(fault: Fault, output: SchedulerOutput) -> bool:
    """A copy overwrites the state of a running request."""
    copies = output.kv_cache_block_copies or []
    known = [ids[0] for table in fault.tables.values() if (ids := table[1]) and ids[0]]
    targets = [block for block in known if all(block not in copy for copy in copies)]
    if copies and targets:
        copies[0] = type(copies[0])(copies[0][0], targets[0])
        return True
    return False


def copy_in_a_chain(_: Fault, output: SchedulerOutput) -> bool:
    """A copy's destination is another one's source."""
    copies = output.kv_cache_block_copies or []
    if len(copies) > 1:
        copies[1] = type(copies[1])(copies[0][0], copies[0][1])
        return True
    return False


def convert_another(fault: Fault, output: SchedulerOutput) -> bool:
    """A request gets the checkpoint back that was left last, not its own."""
    copies: list[Any] = output.kv_cache_block_copies or []
    for at, copy in enumerate(copies):
        if isinstance(copy, ConvertingCopy) and not copy.keeps:
            last = fault.kept.get(copy.group, copy[0])
            if last != copy[0]:
                copies[at] = copy._replace(src_block_id=last)
                return True
    kept = [copy for copy in copies if isinstance(copy, ConvertingCopy) and copy.keeps]
    fault.kept |= {copy.group: copy.dst_block_id for copy in kept}
    return False


def convert_as_another_group(_: Fault, output: SchedulerOutput) -> bool:
    """A state is kept as one of another group."""
    copies: list[Any] = output.kv_cache_block_copies or []
    for at, copy in enumerate(copies):
        if isinstance(copy, ConvertingCopy) and copy.keeps:
            copies[at] = copy._replace(group=3 - copy.group)
            return True
    return False


def leave_a_checkpoint(
    change: Callable[[PrefillCheckpoint, Fault], PrefillCheckpoint | None],
    fault: Fault,
    output: SchedulerOutput,
) -> bool:
    """A forward is to leave a checkpoint of a new request, with a change."""
    for new in output.scheduled_new_reqs:
        start, end = new.num_computed_tokens, output.num_scheduled_tokens[new.req_id]
        one = PrefillCheckpoint(new.req_id, 1, start + 1, new.block_ids[1][0], 1)
        if end > 2 and (changed := change(one, fault)):
            output.kv_cache_block_copies = [*(output.kv_cache_block_copies or ()), changed]  # type: ignore[list-item]
            return True
    return False


def onto_a_state(one: PrefillCheckpoint, fault: Fault) -> PrefillCheckpoint | None:
    held = fault.held(1, one.request_id)
    return one._replace(dst_block=held[0]) if held else None


CHECKPOINTS: dict[str, tuple[Any, str]] = {
    "of attention": (lambda one, _: one._replace(group=0), "is to hold the state of"),
    "of another": (lambda one, _: one._replace(src_block=one.src_block + 1), "the state of block"),
    "at no token": (lambda one, _: one._replace(position=one.position - 1), "of a chunk from"),
    "behind": (lambda one, _: one._replace(position=one.position + 500), "of a chunk from"),
    "of an unknown request": (lambda one, _: one._replace(request_id="x"), "computes nothing"),
    "onto itself": (lambda one, _: one._replace(dst_block=one.src_block), "of the same step"),
    "onto a state": (onto_a_state, "while it is read"),
}


WHO = r"request request\d+, group {}: block \d+ "
IN_USE = WHO + "is handed out while request"
FAULTS: dict[str, tuple[Any, str, str]] = {
    "hit": (hit_of_another, "full", WHO.format(0) + "(holds|stands|is read)"),
    "hand-out": (partial(hand_out_in_use, 0), "full", IN_USE.format(0)),
    "state": (partial(hand_out_in_use, 1), "full-state", IN_USE.format(1)),
    "zeroing": (zero_what_is_read, "full-state", WHO.format(0) + "is zeroed while it is read"),
    "fork": (
        copy_from_another,
        "full-state-fine",
        r"request request\d+, group \d: block \d+ holds",
    ),
    "chain": (copy_in_a_chain, "full-state-fine", r"block \d+ is the destination of a copy"),
}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_violation_is_named(level: Level, fault: str) -> None:
    plant, mix, message = FAULTS[fault]
    with pytest.raises(IntegrityError, match=message):
        live(MIXES[mix], level, 5, NUM_STEPS, is_async=False, fault=Fault(plant))


def test_a_copy_onto_a_state_that_is_read_is_named() -> None:
    fault = Fault(copy_onto_a_state)
    with pytest.raises(IntegrityError, match=WHO.format(r"\d") + "(is overwritten|holds)"):
        live(MIXES["full-state-fine"], Level.NATURAL, 5, NUM_STEPS, is_async=False, fault=fault)


@pytest.mark.parametrize(
    ("plant", "message"),
    [(convert_another, WHO.format(r"\d") + "holds"), (convert_as_another_group, "wrote it")],
)
def test_a_wrong_conversion_is_named(plant: Any, message: str) -> None:
    with pytest.raises(IntegrityError, match=message):
        live(
            MIXES["full-states-int8"],
            Level.NATURAL,
            5,
            NUM_STEPS,
            is_async=False,
            fault=Fault(plant),
        )


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_wrong_prefill_checkpoint_is_named(name: str) -> None:
    change, message = CHECKPOINTS[name]
    fault = Fault(partial(leave_a_checkpoint, change))
    with pytest.raises(IntegrityError, match=message):
        live(MIXES["full-state"], Level.NATURAL, 5, NUM_STEPS, is_async=False, fault=fault)


@pytest.mark.parametrize("level", [Level.MANAGER, Level.NATURAL])
def test_the_cores_books_are_compared(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that the core calls free while a request reads it is an error of the books."""

    def broken(*_: Any) -> None:
        raise IntegrityError("block 7 is free and owned")

    monkeypatch.setattr(check, "STEPS_BETWEEN_CHECKS_OF_BOOKS", 50)
    live(MIXES["full-state"], level, 5, 200, is_async=True)
    monkeypatch.setattr(Blocks, "check_integrity", broken, raising=True)
    with pytest.raises(IntegrityError, match="block 7"):
        live(MIXES["full-state"], level, 5, 200, is_async=True)


def test_the_check_is_attached_if_the_environment_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Scheduler.__init__
    assert not is_checked()
    with installed():
        assert Scheduler.__init__ is original
    monkeypatch.setenv(CHECK, "1")
    with installed():
        assert Scheduler.__init__ is not original
        assert [check._check] == hooks._HOOKS
    assert Scheduler.__init__ is original
