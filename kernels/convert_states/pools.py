"""Where recurrent states lie: as running requests use them, and as checkpoints keep them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from hybrid_blocks.kernels.blocks import Int64s, reach_of
from hybrid_blocks.kernels.ids import IdChecks

if TYPE_CHECKING:
    import torch

FLOAT_BYTES: Final = 4
MAX_WIDTH: Final = 16

SCALE_BYTES: Final = {"bf16": 0, "fp8": 4, "int8": 4}
"""Bytes of a head's scale, by format."""

_NUMBER_BYTES: Final = {"bf16": 2, "fp8": 1, "int8": 1}


class Place(NamedTuple):
    """Layer ``l`` of block ``b`` begins at ``offset + l * layer_stride + b * block_stride``."""

    offset: int
    layer_stride: int
    block_stride: int


class Run(NamedTuple):
    """Layers at equal distances, in running states and in checkpoints."""

    num_layers: int
    running: Place
    kept: Place


@dataclass(frozen=True, kw_only=True)
class StateLayout:
    """Two pools of blocks in one arena, in bytes from its start.

    A layer's running state takes ``page_bytes``. It ends with ``heads`` of ``numbers`` in float32.
    A checkpoint has the bytes before them as they are, and then the heads in ``state_format``:
    ``bf16``, or ``fp8`` (e4m3) or ``int8`` behind a float32 scale a head.
    """

    state_format: str
    num_running: int
    num_kept: int
    page_bytes: int
    heads: int
    numbers: int
    runs: tuple[Run, ...]

    @property
    def num_same(self) -> int:
        """Bytes before the heads, which stay as they are."""
        return self.page_bytes - self.heads * self.numbers * FLOAT_BYTES

    @property
    def scale_bytes(self) -> int:
        """Bytes of a head's scale in a checkpoint."""
        return SCALE_BYTES[self.state_format]

    @property
    def head_bytes(self) -> int:
        """Bytes of a head in a checkpoint, its scale included."""
        return self.scale_bytes + self.numbers * _NUMBER_BYTES[self.state_format]

    @property
    def kept_bytes(self) -> int:
        """Bytes of a layer's state in a checkpoint."""
        return self.num_same + self.heads * self.head_bytes


class Widths(NamedTuple):
    """The largest powers of two, at most 16, that divide all addresses and lengths of a kind."""

    same: int
    heads: int
    codes: int


@dataclass(eq=False)
class StatePools:
    """The pools of ``layout`` in ``arena``, contiguous uint8 ``[bytes]``.

    The device gets a table of 32 bytes a layer. The arena's storage must stay where it is.

    Raises ``TypeError`` for an arena that is not uint8. Raises ``ValueError`` for an unknown
    format, and for heads that a page does not hold or that lie at no multiple of 4 bytes. Raises
    it too for a block outside the arena, and for blocks of one pool that share bytes.
    """

    arena: "torch.Tensor"
    layout: StateLayout
    device: "torch.device" = field(init=False)
    pages: Int64s = field(init=False)

    def __post_init__(self) -> None:
        self.device = self.arena.device
        _check(self.arena, self.layout)
        begin, layout = self.arena.data_ptr(), self.layout
        #: A row a layer: running block 0's address, the block stride, and both of checkpoints.
        self.pages = np.array(_rows(layout.runs), np.int64) + np.array([begin, 0, begin, 0])
        self._check_pool("running", self.pages[:, :2], layout.num_running, layout.page_bytes)
        self._check_pool("kept", self.pages[:, 2:], layout.num_kept, layout.kept_bytes)
        if self.widths.heads < FLOAT_BYTES:
            raise ValueError(
                f"running heads lie at multiples of {self.widths.heads} bytes; float32 numbers "
                f"need {FLOAT_BYTES}"
            )
        self.running, self.kept = IdChecks(layout.num_running), IdChecks(layout.num_kept)
        # The launches that are laid out for these pools, by stream and kernel.
        self.launches: dict[tuple[int, str], Any] = {}
        self._table: torch.Tensor | None = None

    @property
    def num_layers(self) -> int:
        """Layers of all runs."""
        return len(self.pages)

    @cached_property
    def widths(self) -> Widths:
        """What divides the addresses in every block and layer."""
        layout = self.layout
        running, running_stride, kept, kept_stride = self.pages.T
        heads = running + layout.num_same, running_stride, layout.numbers * FLOAT_BYTES
        codes = kept + layout.num_same + layout.scale_bytes, kept_stride, layout.head_bytes
        same = running, running_stride, kept, kept_stride, layout.num_same
        return Widths(_width(*same), _width(*heads), _width(*codes))

    def table(self) -> "torch.Tensor":
        """Return ``pages`` on the device, copied at the first call."""
        if self._table is None:
            import torch  # noqa: PLC0415

            self._table = torch.from_numpy(self.pages).to(self.device)
        return self._table

    def device_tables(self) -> "list[torch.Tensor]":
        """Return the tables that lie on the device so far."""
        return [] if self._table is None else [self._table]

    def _check_pool(self, name: str, places: Int64s, num_blocks: int, num_bytes: int) -> None:
        """Raise ``ValueError`` where a block leaves the arena or shares bytes with another."""
        begins, strides = places.T
        ends = begins + max(num_blocks - 1, 0) * strides + num_bytes
        first = int(begins.min()) - self.arena.data_ptr()
        last = int(ends.max()) - self.arena.data_ptr()
        if num_blocks < 1 or first < 0 or last > self.arena.numel():
            raise ValueError(
                f"the {name} pool has {num_blocks} blocks in bytes {first} to {last} of an arena "
                f"of {self.arena.numel()}"
            )
        segments = np.zeros((len(places), 4), np.int64)
        segments[:, :2], segments[:, 2] = places, num_bytes
        if (reach := reach_of(segments, num_blocks)) > 1:
            raise ValueError(
                f"blocks of the {name} pool whose ids differ by less than {reach} share bytes"
            )


def _check(arena: "torch.Tensor", layout: StateLayout) -> None:
    dtype = str(arena.dtype).removeprefix("torch.")
    if dtype != "uint8":
        raise TypeError(f"the arena must be uint8, got {dtype}")
    if arena.dim() != 1 or not arena.is_contiguous():
        raise ValueError(
            f"the arena must be contiguous bytes, got shape {tuple(arena.shape)} and strides "
            f"{arena.stride()}"
        )
    if layout.state_format not in SCALE_BYTES:
        known = ", ".join(SCALE_BYTES)
        raise ValueError(f"state_format is {layout.state_format!r}; it must be one of {known}")
    if min(layout.heads, layout.numbers) < 1 or layout.num_same < 0:
        raise ValueError(
            f"a page of {layout.page_bytes} bytes does not hold {layout.heads} heads of "
            f"{layout.numbers} float32 numbers"
        )
    if not any(run.num_layers for run in layout.runs):
        raise ValueError("the layout has no layer")


def _rows(runs: Sequence[Run]) -> list[list[int]]:
    return [
        [
            value
            for place in (run.running, run.kept)
            for value in (place.offset + layer * place.layer_stride, place.block_stride)
        ]
        for run in runs
        for layer in range(run.num_layers)
    ]


def _width(*values: "Int64s | int") -> int:
    bits = MAX_WIDTH
    for value in values:
        bits |= int(np.bitwise_or.reduce(value, axis=None))
    return bits & -bits
