"""Random pools of recurrent states for the kernel tests, with every byte around them known."""

from dataclasses import dataclass
from itertools import product

import torch
from hybrid_blocks.kernels import Place, Run, StateLayout, StatePools
from hypothesis import strategies as st
from kernel_cases import DEVICE

FORMATS = ("bf16", "fp8", "int8")
# Values at the 8-bit formats' limits, at ties of bf16, and where the scale decides.
SPECIAL = (
    *(0.0, -0.0, 1.0, -1.0, 448.0, -448.0, 127.0, 3.0e38, -3.4028235e38, 2.0**-149, -(2.0**-127)),
    *(2.0**-100, 2.0**-101, 2.0**-126, 1.00390625, 1.01171875, 0.5, 2.5, 126.5, -126.5, 17.0, 19.0),
    *(float("inf"), -float("inf"), float("nan"), 0.0009765625, 0.0029296875, 0.013671875),
)


@dataclass
class States:
    """Pools over random bytes; ``twin`` makes the same pools over copied bytes."""

    arena: torch.Tensor
    layout: StateLayout

    def __post_init__(self) -> None:
        self.pools = StatePools(self.arena, self.layout)

    def twin(self) -> "States":
        return States(self.arena.clone(), self.layout)

    def page(self, *, kept: bool, layer: int, block: int) -> torch.Tensor:
        """Return the bytes of one layer of one block."""
        layout = self.layout
        for run in layout.runs:
            if layer < run.num_layers:
                offset, layer_stride, block_stride = run.kept if kept else run.running
                begin = offset + layer * layer_stride + block * block_stride
                size = layout.kept_bytes if kept else layout.page_bytes
                return self.arena[begin : begin + size]
            layer -= run.num_layers
        raise IndexError(layer)

    def heads(self, *, kept: bool, layer: int, block: int) -> torch.Tensor:
        """Return the bytes of the heads, a row each."""
        page = self.page(kept=kept, layer=layer, block=block)
        return page[self.layout.num_same :].view(self.layout.heads, -1)

    def restored_numbers(self) -> torch.Tensor:
        """Return all float32 numbers of running states."""
        places = product(range(self.pools.num_layers), range(self.layout.num_running))
        heads = (self.heads(kept=False, layer=layer, block=block) for layer, block in places)
        found = [it.contiguous().view(torch.float32) for it in heads]
        return torch.stack(found)


def same_but_for_nans(mine: States, theirs: States) -> bool:
    """Compare whole arenas. A NaN of a running head, or of bf16, is a NaN in any bits."""
    mine, theirs = mine.twin(), theirs.twin()
    layout = mine.layout
    sides = [(False, layout.num_running, torch.float32, torch.int32)]
    if layout.state_format == "bf16":
        sides.append((True, layout.num_kept, torch.bfloat16, torch.int16))
    for kept, num_blocks, numbers, whole in sides:
        for layer in range(mine.pools.num_layers):
            for block in range(num_blocks):
                for states in (mine, theirs):
                    heads = states.heads(kept=kept, layer=layer, block=block)
                    found = heads.clone().view(numbers)
                    found.view(whole)[found.isnan()] = -1
                    heads.copy_(found.view(torch.uint8))
    return torch.equal(mine.arena, theirs.arena)


def fill(states: States, seed: int, special: float) -> None:
    """Write numbers to running heads, a share of them special, and tops of many magnitudes."""
    generator = torch.Generator().manual_seed(seed)
    layout = states.layout
    values = torch.tensor(SPECIAL)
    for layer in range(states.pools.num_layers):
        for block in range(layout.num_running):
            shape = layout.heads, layout.numbers
            numbers = torch.randn(shape, generator=generator)
            numbers *= 2.0 ** torch.randint(-110, 100, (layout.heads, 1), generator=generator)
            chosen = values[torch.randint(0, len(values), shape, generator=generator)]
            is_special = torch.rand(shape, generator=generator) < special
            numbers = torch.where(is_special, chosen, numbers)
            heads = states.heads(kept=False, layer=layer, block=block)
            heads.copy_(numbers.view(torch.uint8))


def _place(
    draw: st.DrawFn, begin: int, counts: tuple[int, int], size: int, granule: int
) -> tuple[Place, int]:
    """Return a place of layers and blocks from ``begin`` on, and where it ends."""

    def padded(length: int) -> int:
        pad = draw(st.sampled_from((0, 0, 1, 4, 12)))
        return -(-(length + pad) // granule) * granule

    num_layers, num_blocks = counts
    begin = padded(begin)
    if draw(st.booleans()):
        inner, outer = padded(size), num_blocks
        stride = padded(inner * outer)
        return Place(begin, stride, inner), begin + stride * num_layers
    inner, outer = padded(size), num_layers
    stride = padded(inner * outer)
    return Place(begin, inner, stride), begin + stride * num_blocks


@st.composite
def state_pools(draw: st.DrawFn, state_format: str, numbers: int | None = None) -> States:
    """Draw pools of one or two runs of layers, aligned or not, over random or poisoned bytes."""
    num_running, num_kept = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    heads = draw(st.integers(1, 3))
    numbers = numbers or draw(st.sampled_from((1, 3, 4, 16, 37, 64, 130, 1028)))
    same = draw(st.sampled_from((0, 4, 16, 48, 4100)))
    granule, kept_granule = draw(st.sampled_from((4, 16))), draw(st.sampled_from((1, 2, 4, 16)))
    page_bytes = same + heads * numbers * 4
    runs: list[Run] = []
    sizes = StateLayout(
        state_format=state_format,
        num_running=num_running,
        num_kept=num_kept,
        page_bytes=page_bytes,
        heads=heads,
        numbers=numbers,
        runs=(),
    )
    end = 0
    for num_layers in draw(st.lists(st.integers(1, 2), min_size=1, max_size=2)):
        running, end = _place(draw, end, (num_layers, num_running), page_bytes, granule)
        size = sizes.kept_bytes
        kept, end = _place(draw, end, (num_layers, num_kept), size, kept_granule)
        runs.append(Run(num_layers, running, kept))
    layout = StateLayout(**{**vars(sizes), "runs": tuple(runs)})
    seed = draw(st.integers(0, 999))
    generator = torch.Generator().manual_seed(seed)
    arena = torch.randint(0, 256, (end + 16,), dtype=torch.uint8, generator=generator)
    if draw(st.booleans()):
        arena.fill_(0xFF)
    states = States(arena, layout)
    fill(states, seed, draw(st.sampled_from((0.0, 0.02, 0.5))))
    return States(states.arena.to(DEVICE), layout)


@st.composite
def pairs(draw: st.DrawFn, states: States, *, keeps: bool) -> tuple[list[int], list[int]]:
    """Draw sources of one pool and different destinations of the other."""
    sizes = states.layout.num_running, states.layout.num_kept
    num_sources, num_targets = sizes if keeps else sizes[::-1]
    dst = draw(st.lists(st.integers(0, num_targets - 1), unique=True))
    src = [draw(st.integers(0, num_sources - 1)) for _ in dst]
    return src, dst


def plain_states(
    state_format: str,
    *,
    num_running: int = 3,
    num_kept: int = 5,
    num_layers: int = 2,
    heads: int = 2,
    numbers: int = 64,
    same: int = 48,
    seed: int = 0,
) -> States:
    """Return pools side by side, layer by layer, with normal numbers in the heads."""
    sizes = StateLayout(
        state_format=state_format,
        num_running=num_running,
        num_kept=num_kept,
        page_bytes=same + heads * numbers * 4,
        heads=heads,
        numbers=numbers,
        runs=(),
    )
    page, stored = sizes.page_bytes, -(-sizes.kept_bytes // 16) * 16
    running = Place(0, page * num_running, page)
    begin = page * num_running * num_layers
    kept = Place(begin, stored * num_kept, stored)
    runs = (Run(num_layers, running, kept),)
    arena = torch.full((begin + stored * num_kept * num_layers,), 0xFF, dtype=torch.uint8)
    states = States(arena, StateLayout(**{**vars(sizes), "runs": runs}))
    fill(states, seed, 0.0)
    return States(arena.to(DEVICE), states.layout)
