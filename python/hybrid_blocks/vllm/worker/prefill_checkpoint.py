"""Prefill checkpoints: states that a forward leaves behind between two tokens of a prompt.

Each is the request's running state after ``position`` tokens, copied while the forward runs.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class PrefillCheckpoint(NamedTuple):
    """A state of one group after ``position`` tokens of a request, left in ``dst_block``.

    The request's running state is in ``src_block``. vLLM's own function for copies refuses a tuple
    of this length, so it never takes a checkpoint for a copy that precedes the forward.
    """

    request_id: str
    group: int
    position: int
    src_block: int
    dst_block: int


@dataclass(eq=False)
class Step:
    """The checkpoints that one forward leaves; ``num_unwritten`` counts copies of layers to come.

    The count is ``None`` until the step's metadata is built.
    """

    checkpoints: Sequence[PrefillCheckpoint]
    num_unwritten: int | None = None
    _rows: Mapping[str, int] = field(default_factory=dict)

    def begin(self, request_ids: Iterable[str]) -> None:
        """Take in the order of the batch, whose metadata is about to be built."""
        self._rows = {id_: row for row, id_ in enumerate(request_ids)}
        if absent := {one.request_id for one in self.checkpoints} - self._rows.keys():
            raise RuntimeError(f"prefill checkpoints of requests outside the batch: {absent}")
        self.num_unwritten = 0

    def of_group(self, group: int) -> dict[int, list[PrefillCheckpoint]]:
        """Return a group's checkpoints by row of the batch, in the order of their positions."""
        by_row: dict[int, list[PrefillCheckpoint]] = defaultdict(list)
        for one in sorted(self.checkpoints, key=lambda one: one.position):
            if one.group == group:
                by_row[self._rows[one.request_id]].append(one)
        return by_row

    def expect(self, count: int) -> None:
        """Note that the forward is to write ``count`` states of layers more."""
        self.num_unwritten = (self.num_unwritten or 0) + count

    def note_written(self) -> None:
        """Note that a layer's state was copied."""
        self.num_unwritten = (self.num_unwritten or 0) - 1

    def check_written(self) -> None:
        """Raise ``RuntimeError`` unless the forward left all checkpoints of the step."""
        if self.num_unwritten != 0:
            ids = sorted({one.request_id for one in self.checkpoints})
            raise RuntimeError(
                f"a forward did not leave prefill checkpoints of requests {ids}: "
                f"{self.num_unwritten} states of layers are missing"
            )


_STEPS: dict[int, Step] = {}
"""The last step with checkpoints, by each allocation of a runner's tensors."""


def register(caches: Iterable[Any], checkpoints: Sequence[PrefillCheckpoint]) -> None:
    """Let the next forward over ``caches`` leave checkpoints."""
    step = Step(checkpoints)
    for address in {_allocation(tensor) for tensor in caches}:
        if before := _STEPS.get(address):
            before.check_written()
        _STEPS[address] = step


def take(tensor: Any) -> Step | None:
    """Return the step that is registered for a tensor's allocation, once."""
    step = _STEPS.get(_allocation(tensor))
    if step is None:
        return None
    if step.num_unwritten is None:
        return step
    del _STEPS[_allocation(tensor)]
    step.check_written()
    return None


def is_any_due() -> bool:
    """Return whether a forward in this process is to leave checkpoints."""
    return any(step.num_unwritten is None for step in _STEPS.values())


def _allocation(tensor: Any) -> int:
    address: int = tensor.untyped_storage().data_ptr()
    return address
