"""The work that is timed, with its byte floor, its reference and its competitors."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from hybrid_blocks.kernels import (
    Backend,
    BlockTensors,
    Place,
    Run,
    StateLayout,
    StatePools,
    convert_states,
    copy_blocks,
    gather_blocks,
    scatter_blocks,
)
from hybrid_blocks.kernels.convert_states import naive
from peers import BatchedCopies, indexed_copy, vllm_copies, vllm_step, vllm_swap

HEAD = 128  # A head's state is 128 x 128 floats in every model here.
FAST: tuple[Backend, ...] = ("cupy", "triton")
SETS = 20

Call = Callable[[int], None]
Ids = "np.ndarray[tuple[int], np.dtype[np.int32]]"


@dataclass
class Case:
    """One row of the table.

    ``reference`` does the work of set ``i`` with plain torch. Before a call is timed, the whole of
    ``outputs`` must be the same bytes after it as after the reference, for two sets. ``calls`` get
    their lists on the device, ``host`` is the best version with lists on the host.
    """

    name: str
    outputs: Sequence[torch.Tensor]
    reference: Call
    floor_bytes: int | None = None
    rate: str = "copy"  # which measured rate is the floor: "copy", "to_host" or "to_device"
    target: float | None = None  # Share of the floor's rate, 0 to 1.
    prediction: str = "—"  # share of the floor's rate, H100 / H200, before any measurement
    calls: dict[str, Call] = field(default_factory=dict)
    host: Call | None = None

    def is_right(self, call: Call) -> bool:
        """Return whether ``call`` leaves every byte of the outputs as the reference does.

        They hold fresh random bytes before, so that a result of an earlier call is none of this.
        """
        for i in (0, 1):
            for tensor in self.outputs:
                random_fill(tensor)
            before = [tensor.clone() for tensor in self.outputs]
            self.reference(i)
            torch.cuda.synchronize()
            wanted = [tensor.clone() for tensor in self.outputs]
            if same_bytes(before, wanted):
                raise RuntimeError(f"the reference of {self.name!r} changes nothing")
            for tensor, held in zip(self.outputs, before, strict=True):
                tensor.copy_(held)
            del before
            call(i)
            torch.cuda.synchronize()
            if not same_bytes(self.outputs, wanted):
                return False
        return True


def same_bytes(mine: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> bool:
    """Return whether contiguous tensors hold the same bytes; NaNs equal themselves."""
    return all(
        torch.equal(as_bytes(left), as_bytes(right))
        for left, right in zip(mine, theirs, strict=True)
    )


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a contiguous tensor."""
    return tensor.view(-1).view(torch.uint8)


def on_device(values: "np.ndarray[Any, Any]") -> torch.Tensor:
    """Return ``values`` as an int32 list on the device."""
    return torch.from_numpy(values.astype(np.int32)).cuda()


def random_fill(tensor: torch.Tensor) -> torch.Tensor:
    """Fill a contiguous tensor with random bytes that are finite in every format."""
    for chunk in as_bytes(tensor).split(1 << 30):
        chunk.random_(0, 126)
    return tensor


def address(tensor: torch.Tensor, block: int) -> int:
    """Return the address of one block."""
    return tensor.data_ptr() + int(block) * tensor.stride(0) * tensor.element_size()


def block_copies(
    name: str,
    tensors: list[torch.Tensor],
    count: int,
    *,
    target: float | None = None,
    prediction: str = "—",
    by_torch: Callable[[list[torch.Tensor], torch.Tensor, torch.Tensor], None] = indexed_copy,
) -> Case:
    """Copy ``count`` random blocks of a group to other random blocks."""
    group = BlockTensors(tensors)
    sets = max(1, min(SETS, group.num_blocks // (2 * count)))
    order = np.random.default_rng(0).permutation(group.num_blocks)[: sets * 2 * count]
    pairs = order.reshape(sets, 2, count).astype(np.int32)
    lists = [(on_device(src), on_device(dst)) for src, dst in pairs]
    wide = [(src.long(), dst.long()) for src, dst in lists]
    copies = [
        [
            (address(t, d), address(t, s), t[0].numel() * t.element_size())
            for t in tensors
            for s, d in zip(src, dst, strict=True)
        ]
        for src, dst in pairs
    ]

    def indexed(i: int) -> None:
        by_torch(tensors, *wide[i % sets])

    case = Case(name, tensors, indexed, 2 * count * group.record_bytes)
    case.target, case.prediction = target, prediction
    for backend in FAST:
        case.calls[backend] = lambda i, b=backend: copy_blocks(group, *lists[i % sets], backend=b)
    case.host = lambda i: copy_blocks(group, *pairs[i % sets])
    case.calls["torch"] = indexed
    batches = [BatchedCopies(of) for of in copies]
    case.calls["batch"] = lambda i: batches[i % sets]()
    theirs = [vllm_copies(of) for of in copies]
    if theirs[0] is not None:
        case.calls["vllm"] = lambda i: theirs[i % sets]()  # type: ignore[misc]
    return case


def replayed_copy(tensors: list[torch.Tensor]) -> Case:
    """Copy one request's state by replaying a captured graph."""
    group = BlockTensors(tensors)
    src, dst = on_device(np.array([0])), on_device(np.array([1]))

    def reference(i: int) -> None:
        for tensor in tensors:
            tensor[2 + 2 * (i % SETS)] = tensor[1 + 2 * (i % SETS)]

    case = Case(
        "the same by graph replay, lists refilled", tensors, reference, 2 * group.record_bytes
    )
    for backend in FAST:
        copy_blocks(group, src, dst, backend=backend)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            copy_blocks(group, src, dst, backend=backend)

        def replay(i: int, graph: torch.cuda.CUDAGraph = graph) -> None:
            src.fill_(1 + 2 * (i % SETS))
            dst.fill_(2 + 2 * (i % SETS))
            graph.replay()

        case.calls[backend] = replay
    return case


@dataclass(frozen=True)
class States:
    """The GatedDeltaNet states of a model: layers, value heads, and the convolution's window."""

    layers: int
    heads: int
    conv_channels: int
    conv_columns: int

    def of(self, slots: int) -> list[torch.Tensor]:
        """Return the convolution and recurrent states of ``slots`` requests, all layers."""
        conv = (slots, self.conv_columns, self.conv_channels)
        recurrent = (slots, self.heads, HEAD, HEAD)
        made = [torch.empty(conv, dtype=torch.bfloat16, device="cuda") for _ in range(self.layers)]
        made += [torch.empty(recurrent, device="cuda") for _ in range(self.layers)]
        return [random_fill(tensor) for tensor in made]

    def apart(self, state_format: str, slots: int, device: str = "cuda") -> StatePools:
        """Return running states of ``slots`` requests, and as many checkpoints in a format."""
        numbers = HEAD * HEAD
        conv_bytes = self.conv_columns * self.conv_channels * 2
        layout = StateLayout(
            state_format=state_format,
            num_running=slots,
            num_kept=slots,
            page_bytes=conv_bytes + self.heads * numbers * 4,
            heads=self.heads,
            numbers=numbers,
            runs=(),
        )
        page, kept = layout.page_bytes, -(-layout.kept_bytes // 128) * 128
        end = slots * self.layers * page
        run = Run(
            self.layers, Place(0, page, self.layers * page), Place(end, kept, self.layers * kept)
        )
        size = end + slots * self.layers * kept
        arena = random_fill(torch.empty(size, dtype=torch.uint8, device=device))
        return StatePools(arena, replace(layout, runs=(run,)))


QWEN_27B = States(48, 48, 10240, 3)  # Qwen3.5-27B
QWEN_9B = States(24, 32, 8192, 5)  # Qwen3.5-9B with two drafts: 49.88 MiB a request


def step_of_slabs(count: int = 17, slab_bytes: int = 37 << 20) -> Case:
    """Copy slabs of one arena: a step of Qwen3.5-27B at level natural with 256 requests running."""
    arena = random_fill(torch.empty(6 * count, slab_bytes, dtype=torch.uint8, device="cuda"))
    name = f"{count} slabs of {slab_bytes >> 20} MiB in one arena"
    return block_copies(name, [arena], count, by_torch=vllm_step)


def conversions(pools: StatePools, count: int, *, keeps: bool) -> Case:
    """Keep ``count`` states in the format of checkpoints, or bring them back, all layers."""
    layout = pools.layout
    sets = layout.num_running // count
    order = np.random.default_rng(0).permutation(layout.num_running).astype(np.int32)
    ids = order[: sets * count].reshape(sets, count)
    lists = [torch.from_numpy(row).to(pools.device) for row in ids]

    def reference(i: int) -> None:
        naive.convert(pools, ids[i % sets], ids[(i + 1) % sets], keeps=keeps)

    done = "keep" if keeps else "bring back"
    moved = count * pools.num_layers * (layout.page_bytes + layout.kept_bytes)
    case = Case(f"{done} {count} states, {layout.state_format}", [pools.arena], reference, moved)
    case.calls["triton"] = lambda i: convert_states(
        pools, lists[i % sets], lists[(i + 1) % sets], keeps=keeps, backend="triton"
    )
    case.calls["torch"] = reference
    case.host = lambda i: convert_states(pools, ids[i % sets], ids[(i + 1) % sets], keeps=keeps)
    return case


def odd_pages(count: int = 2048, size: int = 33_333) -> Case:
    """Copy pages whose length and addresses nothing but 1 divides."""
    arena = random_fill(torch.empty(8 * count * size + 1, dtype=torch.uint8, device="cuda"))
    pages = arena.as_strided((8 * count, size), (size, 1), 1)
    group = BlockTensors([pages])
    order = np.random.default_rng(0).permutation(8 * count).reshape(4, 2, count)
    lists = [(on_device(src), on_device(dst)) for src, dst in order]

    def reference(i: int) -> None:
        src, dst = lists[i % 4]
        pages[dst.long()] = pages[src.long()]

    name = f"{count:,} pages of {size:,} bytes at odd addresses"
    case = Case(name, [arena], reference, 2 * count * size)
    for backend in FAST:
        case.calls[backend] = lambda i, b=backend: copy_blocks(group, *lists[i % 4], backend=b)
    return case


def compaction(slabs: int = 1024, slab_bytes: int = 2 << 20) -> Case:
    """Slide every slab down by one: each destination is the next pair's source."""
    arena = random_fill(torch.empty((slabs + 1) * slab_bytes, dtype=torch.uint8, device="cuda"))
    rows = arena.view(slabs + 1, slab_bytes)
    group, ids = BlockTensors([rows]), np.arange(slabs, dtype=np.int32)

    def reference(_: int) -> None:
        rows[:slabs] = rows[1:].clone()

    name = f"{slabs:,} slabs of 2 MiB slide down by one, one launch"
    case = Case(name, [arena], reference, 2 * slabs * slab_bytes)
    for backend in FAST:
        case.calls[backend] = lambda _, b=backend: copy_blocks(
            group, ids + np.int32(1), ids, backend=b
        )
    case.host = lambda _: copy_blocks(group, ids + np.int32(1), ids)
    return case


@dataclass
class Offload:
    """Pages on the device and a pinned buffer of as many records."""

    page_bytes: int
    total_bytes: int = 128 << 20

    def __post_init__(self) -> None:
        self.count = self.total_bytes // self.page_bytes
        shape = (4 * self.count, self.page_bytes)
        self.pages = random_fill(torch.empty(shape, dtype=torch.uint8, device="cuda"))
        self.group = BlockTensors([self.pages])
        self.staging = torch.empty(self.total_bytes, dtype=torch.uint8, pin_memory=True)
        self.staging.random_(0, 126)
        order = np.random.default_rng(0).permutation(len(self.pages))
        self.host_lists = order.reshape(4, self.count).astype(np.int32)
        self.lists = [on_device(ids) for ids in self.host_lists]
        self.wide = [ids.long() for ids in self.lists]
        self.host_places = np.arange(self.count, dtype=np.int32)
        self.places = on_device(self.host_places)

    @property
    def size(self) -> str:
        """The page size in words."""
        kib = self.page_bytes >> 10
        return f"{kib} KiB" if kib < 1024 else f"{kib >> 10} MiB"

    def call(self, direction: str, backend: Backend, max_sms: int | None = None) -> Call:
        """Return a transfer of all pages of a set; the copy engine's lists are on the host."""
        move = gather_blocks if direction == "gather" else scatter_blocks
        lists: Sequence[Any] = self.host_lists if backend == "copy_engine" else self.lists
        places = self.host_places if backend == "copy_engine" else self.places
        return lambda i: move(
            *(self.group, lists[i % 4], self.staging, places, self.page_bytes),
            backend=backend,
            max_sms=max_sms,
        )

    def copies(self, direction: str, i: int) -> list[tuple[int, int, int]]:
        """Return (target, source, bytes) of each page of a set."""
        sides = [
            (self.staging.data_ptr() + at * self.page_bytes, address(self.pages, block))
            for at, block in enumerate(self.host_lists[i])
        ]
        gather = direction == "gather"
        return [(h, d, self.page_bytes) if gather else (d, h, self.page_bytes) for h, d in sides]

    def case(self, direction: str, prediction: str) -> Case:
        """Return the row of one direction."""
        gather = direction == "gather"

        def reference(i: int) -> None:
            if gather:
                chosen = self.pages.index_select(0, self.wide[i % 4])
                self.staging.view(self.count, -1).copy_(chosen, non_blocking=True)
            else:
                held = self.staging.to("cuda", non_blocking=True).view(self.count, -1)
                self.pages.index_copy_(0, self.wide[i % 4], held)

        where = "to" if gather else "from"
        case = Case(
            f"{direction} {where} pinned host, pages of {self.size}",
            [self.staging if gather else self.pages],
            reference,
            self.total_bytes,
            "to_host" if gather else "to_device",
            0.9,
            prediction,
        )
        for backend in FAST:
            case.calls[backend] = self.call(direction, backend)
        case.calls["torch"] = reference
        case.calls["batch"] = self.call(direction, "copy_engine")
        theirs = [vllm_swap(self.copies(direction, i), self.page_bytes) for i in range(4)]
        if theirs[0] is not None:
            case.calls["vllm"] = lambda i: theirs[i % 4]()  # type: ignore[misc]
        move = gather_blocks if gather else scatter_blocks
        case.host = lambda i: move(
            self.group, self.host_lists[i % 4], self.staging, self.host_places, self.page_bytes
        )
        return case


PAGES = (8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20)


def all_cases() -> Iterator[Case]:
    """Yield the rows one at a time, the most telling first, so that few buffers are alive."""
    tensors = QWEN_27B.of(64)  # these tensors take 10 GB
    name = "copy 1 request's state, all layers"
    yield block_copies(name, tensors, 1, target=0.85, prediction="91 to 95 / 88 to 93 %")
    yield replayed_copy(tensors)
    for count in (8, 16):
        name = f"copy {count} requests' states"
        yield block_copies(name, tensors, count, target=0.93, prediction="96 to 101 / 96 to 101 %")
    tensors = QWEN_9B.of(256)  # these tensors take 13 GB
    for count in (1, 16, 128):
        yield block_copies(f"Qwen3.5-9B, copy {count} states of 49.88 MiB", tensors, count)
    del tensors
    yield step_of_slabs()
    pages = random_fill(torch.empty(4096 * 16, 32 << 10, dtype=torch.uint8, device="cuda"))
    name = "4,096 attention pages of 32 KiB, random ids"
    yield block_copies(name, [pages], 4096, target=0.9, prediction="90 to 95 / 88 to 93 %")
    yield block_copies("one page of 32 KiB", [pages], 1)
    del pages
    for page_bytes in PAGES:
        offload = Offload(page_bytes)
        yield offload.case("gather", "90 to 97 %")
        yield offload.case("scatter", "85 to 95 %")
        del offload
    for state_format in ("int8", "fp8", "bf16"):
        pools = QWEN_27B.apart(state_format, 32)
        yield conversions(pools, 8, keeps=True)
        yield conversions(pools, 8, keeps=False)
        del pools
    yield compaction()
    yield odd_pages()
