"""The memory of a fake worker: what blocks of all groups hold, in the bytes that they share."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import lcm
from typing import Any

import numpy as np
from hybrid_blocks.vllm.worker.copies import ConvertingCopy
from numpy.typing import NDArray
from vllm.v1.kv_cache_interface import KVCacheConfig, MambaSpec

Cells = NDArray[np.uint64]
Ids = NDArray[np.int64]

NOT_A_NUMBER = np.uint64(2**64 - 1)
"""Content of a free unit; zeroing must have removed it before a step computes."""
STALE = np.uint64(2**64 - 2)
"""Content of a block that is handed out without zeroing: finite, and no request's content."""


@dataclass(frozen=True)
class Layout:
    """Where a group's blocks lie in the units: ``per_unit`` blocks of ``size`` cells a unit."""

    per_unit: int
    size: int

    def unit_and_cell(self, ids: Ids) -> tuple[Ids, Ids]:
        """Return the unit and the first cell of each block."""
        return ids // self.per_unit, ids % self.per_unit * self.size


class Memory:
    """Units, as many as ``num_blocks`` says, that blocks of all groups are views of.

    A unit is a page of stock vLLM, or a slab of level ``natural``. An attention block keeps one
    cell for each token. A state slot keeps ``num_columns`` cells of convolution window, and its
    temporal state in all the rest.
    """

    def __init__(self, config: KVCacheConfig, num_columns: int) -> None:
        groups = config.kv_cache_groups
        counts = [_blocks_per_unit(config, group) for group in range(len(groups))]
        needed = max(
            (num_columns + 1 if isinstance(spec, MambaSpec) else spec.block_size) * count
            for spec, count in zip((g.kv_cache_spec for g in groups), counts, strict=True)
        )
        cuts = counts + [_checkpoints_per_unit(config, group) for group in range(len(groups))]
        # A checkpoint in another format has a window, and one cell that stands for the rest.
        needed = max(needed, (num_columns + 1) * max(cuts[len(counts) :]))
        num_cells = -(-needed // lcm(*cuts)) * lcm(*cuts)
        self.layouts = [Layout(count, num_cells // count) for count in counts]
        self.kept_layouts = [Layout(count, num_cells // count) for count in cuts[len(counts) :]]
        self.units: Cells = np.zeros((config.num_blocks, num_cells), dtype=np.uint64)
        self.num_columns = num_columns
        # At level natural attention and state views of one slab are two; each is copied on its own.
        self.num_views = 2 if max(counts) > 1 else 1

    # --- what the scheduler's output asks for -------------------------------

    def fill(self, units: Ids, value: np.uint64) -> None:
        """Fill whole units."""
        self.units[units] = value

    def make_stale(self, group: int, ids: Ids) -> None:
        """Overwrite blocks that were handed out, but for those that were poisoned while free."""
        for cells in self._blocks(group, ids):
            if cells[0] != NOT_A_NUMBER:
                cells[:] = STALE

    def zero(self, ids: Ids) -> None:
        """Zero units, as ``new_block_ids_to_zero`` asks."""
        self.units[ids] = 0

    def zero_blocks(self, group: int, ids: Ids) -> None:
        """Zero blocks of one group."""
        for cells in self._blocks(group, ids):
            cells[:] = 0

    def copy(self, sources: Ids, destinations: Ids) -> None:
        """Gather all units, then scatter them; once for each view of the same bytes."""
        for _ in range(self.num_views):
            self.units[destinations] = self.units[sources]

    def source_unit(self, copy: ConvertingCopy) -> int:
        """Return the unit that a copy reads."""
        layout = (self.layouts if copy.keeps else self.kept_layouts)[copy.group]
        return copy.src_block_id // layout.per_unit

    def convert(self, copies: Iterable[ConvertingCopy]) -> None:
        """Carry out copies between states and checkpoints, which keep one cell of the state."""
        read = []
        for copy in copies:
            layouts = [self.layouts[copy.group], self.kept_layouts[copy.group]]
            source, target = layouts if copy.keeps else layouts[::-1]
            cells = self._cells(source, copy.src_block_id)
            read.append((copy, target, cells[: self.num_columns + 1].copy()))
        for copy, target, cells in read:
            into = self._cells(target, copy.dst_block_id)
            into[: self.num_columns] = cells[: self.num_columns]
            into[self.num_columns :] = cells[self.num_columns]

    def _cells(self, layout: Layout, id_: int) -> Cells:
        unit, cell = id_ // layout.per_unit, id_ % layout.per_unit * layout.size
        return self.units[unit, cell : cell + layout.size]

    def _blocks(self, group: int, ids: Ids) -> list[Cells]:
        layout = self.layouts[group]
        units, first = layout.unit_and_cell(ids)
        return [
            self.units[unit, cell : cell + layout.size]
            for unit, cell in zip(units, first, strict=True)
        ]

    # --- attention ----------------------------------------------------------

    def read_tokens(self, group: int, ids: Ids, offsets: Ids) -> Cells:
        """Return the cells at ``offsets`` within the blocks ``ids``, one of each."""
        units, first = self.layouts[group].unit_and_cell(ids)
        cells: Cells = self.units[units, first + offsets]
        return cells

    def write_tokens(self, group: int, ids: Ids, offsets: Ids, values: Cells) -> None:
        """Write one cell in each of the blocks ``ids``."""
        units, first = self.layouts[group].unit_and_cell(ids)
        self.units[units, first + offsets] = values

    def has_poison(self, group: int, ids: Ids, block_size: int) -> bool:
        """Return whether any cell of a block is not a number."""
        units, first = self.layouts[group].unit_and_cell(ids)
        cells = self.units[units[:, None], first[:, None] + np.arange(block_size)]
        return bool((cells == NOT_A_NUMBER).any())

    # --- states -------------------------------------------------------------

    def window(self, group: int, id_: int) -> Cells:
        """Return a view of a slot's convolution window."""
        return self._blocks(group, np.array([id_]))[0][: self.num_columns]

    def state(self, group: int, id_: int) -> Cells:
        """Return a view of a slot's temporal state."""
        return self._blocks(group, np.array([id_]))[0][self.num_columns :]


def _blocks_per_unit(config: Any, group: int) -> int:
    per_slab = getattr(config, "blocks_per_slab_of", None)
    return per_slab(group) if per_slab else 1


def _checkpoints_per_unit(config: Any, group: int) -> int:
    pool_of = getattr(config, "kept_pool_of", None)
    return config.blocks_per_slab[pool_of(group)] if pool_of else 1
