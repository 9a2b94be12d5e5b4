"""The work that is timed, with its byte floor, its gate and its competitors."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from hybrid_blocks.kernels import (
    Backend,
    BlockTensors,
    StateCodec,
    convert_state,
    copy_blocks,
    gather_blocks,
    scatter_blocks,
)
from peers import BatchedCopies, indexed_copy

# Qwen3.5-27B: 48 GatedDeltaNet layers, 48 value heads of 128 x 128 and 3 convolution columns.
LAYERS, HEADS, HEAD, CONV_CHANNELS, CONV_COLUMNS = 48, 48, 128, 10240, 3
FAST: tuple[Backend, ...] = ("cupy", "triton")
OFFLOAD_SMS = 8

Call = Callable[[int], None]


@dataclass
class Case:
    """One row: ``calls`` are timed only after ``gate`` found their result right."""

    name: str
    target: float  # of the floor's rate, 0 to 1
    floor_bytes: int
    rate: str  # which measured rate is the floor: "copy", "to_host" or "to_device"
    gate: Callable[[Call], bool]
    calls: dict[str, Call] = field(default_factory=dict)


def ids(values: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> torch.Tensor:
    """Return ``values`` as an int32 list on the device."""
    return torch.from_numpy(values.astype(np.int32)).cuda()


def random_fill(tensor: torch.Tensor) -> torch.Tensor:
    """Fill a contiguous tensor with random bytes that are finite in every format."""
    as_bytes = tensor.view(-1).view(torch.uint8)
    for chunk in as_bytes.split(1 << 30):
        chunk.random_(0, 126)
    return tensor


def address(tensor: torch.Tensor, block: int) -> int:
    """Return the address of one block."""
    return tensor.data_ptr() + block * tensor.stride(0) * tensor.element_size()


def block_copies(name: str, target: float, tensors: list[torch.Tensor], count: int) -> Case:
    """Copy ``count`` random blocks of a group to other random blocks."""
    group = BlockTensors(tensors)
    sets = max(1, min(20, group.num_blocks // (2 * count)))
    order = np.random.default_rng(0).permutation(group.num_blocks)[: sets * 2 * count]
    pairs = order.reshape(sets, 2, count)
    lists = [(ids(src), ids(dst)) for src, dst in pairs]
    wide = [(src.long(), dst.long()) for src, dst in lists]

    def gate(call: Call) -> bool:
        src, dst = wide[0]
        for tensor in tensors:
            tensor.view(-1).view(torch.uint8).view(tensor.shape[0], -1)[dst] = 0xFF
        call(0)
        return all(
            torch.equal(tensor[d], tensor[s])
            for tensor in tensors
            for s, d in zip(src.tolist(), dst.tolist(), strict=True)
        )

    case = Case(name, target, 2 * count * group.block_bytes, "copy", gate)
    for backend in FAST:
        case.calls[backend] = lambda i, b=backend: copy_blocks(group, *lists[i % sets], backend=b)
    case.calls["torch"] = lambda i: indexed_copy(tensors, *wide[i % sets])
    batches = [
        BatchedCopies(
            [
                (address(t, int(d)), address(t, int(s)), t[0].numel() * t.element_size())
                for t in tensors
                for s, d in zip(src, dst, strict=True)
            ]
        )
        for src, dst in pairs
    ]
    case.calls["batch"] = lambda i: batches[i % sets]()
    return case


def states(slots: int) -> list[torch.Tensor]:
    """Return the convolution and recurrent states of ``slots`` requests, all layers."""
    conv = [
        random_fill(
            torch.empty(slots, CONV_COLUMNS, CONV_CHANNELS, dtype=torch.bfloat16, device="cuda")
        )
        for _ in range(LAYERS)
    ]
    recurrent = [
        random_fill(torch.empty(slots, HEADS, HEAD, HEAD, device="cuda")) for _ in range(LAYERS)
    ]
    return conv + recurrent


def offload(page_bytes: int, total_bytes: int = 256 << 20) -> Iterator[Case]:
    """Gather pages to pinned host memory and scatter them back, on a few SMs."""
    count = total_bytes // page_bytes
    pages = random_fill(torch.empty(4 * count, page_bytes, dtype=torch.uint8, device="cuda"))
    group = BlockTensors([pages])
    staging = torch.empty(total_bytes, dtype=torch.uint8, pin_memory=True)
    order = np.random.default_rng(0).permutation(len(pages)).reshape(4, count)
    lists = [ids(block_ids) for block_ids in order]
    wide = [block_ids.long() for block_ids in lists]

    def gathered(call: Call) -> bool:
        staging.fill_(0xFF)
        call(0)
        torch.cuda.synchronize()
        return torch.equal(staging.cuda().view(count, -1), pages[wide[0]])

    def scattered(call: Call) -> bool:
        staging.random_(0, 256)
        pages[wide[0]] = 0
        call(0)
        return torch.equal(staging.cuda().view(count, -1), pages[wide[0]])

    def select(i: int) -> None:
        staging.view(count, -1).copy_(pages.index_select(0, wide[i % 4]), non_blocking=True)

    def restore(i: int) -> None:
        on_device = staging.to("cuda", non_blocking=True)
        pages.index_copy_(0, wide[i % 4], on_device.view(count, -1))

    size = f"{page_bytes >> 10} KiB" if page_bytes < 1 << 20 else f"{page_bytes >> 20} MiB"
    for name, rate, gate, move, torch_call, to_host in (
        ("gather to pinned host", "to_host", gathered, gather_blocks, select, True),
        ("scatter from pinned host", "to_device", scattered, scatter_blocks, restore, False),
    ):
        case = Case(f"{name}, pages of {size}, {OFFLOAD_SMS} SMs", 0.9, total_bytes, rate, gate)
        for backend in FAST:
            case.calls[backend] = lambda i, b=backend, move=move: move(
                group, lists[i % 4], staging, backend=b, max_sms=OFFLOAD_SMS
            )
        case.calls["torch"] = torch_call
        sides = [
            [
                (staging.data_ptr() + at * page_bytes, address(pages, int(block)))
                for at, block in enumerate(block_ids)
            ]
            for block_ids in order
        ]
        batches = [
            BatchedCopies([(h, d, page_bytes) if to_host else (d, h, page_bytes) for h, d in side])
            for side in sides
        ]
        case.calls["batch"] = lambda i, batches=batches: batches[i % 4]()
        yield case


def quantized_checkpoint(slots: int = 12) -> Case:
    """Convert one request's recurrent state to int8 with a scale a head."""
    state = [torch.randn(slots, HEADS, HEAD, HEAD, device="cuda") for _ in range(LAYERS)]
    packed = [torch.empty(s.shape, dtype=torch.int8, device="cuda") for s in state]
    scales = [torch.empty(slots, HEADS, device="cuda") for _ in state]
    codec = StateCodec(BlockTensors(state), BlockTensors(packed), BlockTensors(scales))
    lists = [ids(np.array([slot])) for slot in range(slots)]

    def gate(call: Call) -> bool:
        for tensor, scale in zip(packed, scales, strict=True):
            tensor.fill_(-128)
            scale.fill_(torch.nan)
        call(0)
        restored = (p[0].float() * s[0, :, None, None] for p, s in zip(packed, scales, strict=True))
        return all(
            bool(((x - y).abs() <= x.abs().amax((-2, -1), keepdim=True) / 253.9).all())
            for x, y in zip((s[0] for s in state), restored, strict=True)
        )

    elements = LAYERS * HEADS * HEAD * HEAD
    floor = elements * 5 + LAYERS * HEADS * 4
    case = Case("fp32 to int8 checkpoint of one request", 0.8, floor, "copy", gate)
    for backend in FAST:
        case.calls[backend] = lambda i, b=backend: convert_state(
            codec, lists[i % slots], lists[i % slots], direction="encode", backend=b
        )

    def torch_call(i: int) -> None:
        slot = i % slots
        for tensor, out, scale in zip(state, packed, scales, strict=True):
            peak = tensor[slot].abs().amax((-2, -1), keepdim=True)
            out[slot] = (tensor[slot] * (127 / peak)).round()
            scale[slot] = (peak / 127).view(-1)

    case.calls["torch"] = torch_call
    return case


def all_cases() -> Iterator[Case]:
    """Yield the rows one at a time, so that only one case's buffers are alive."""
    tensors = states(64)  # 10 GB
    yield block_copies("copy 1 request's state, all layers", 0.70, tensors, 1)
    yield block_copies("copy 8 requests' states", 0.93, tensors, 8)
    yield block_copies("copy 16 requests' states", 0.93, tensors, 16)
    del tensors
    pages = random_fill(torch.empty(4096 * 16, 32 << 10, dtype=torch.uint8, device="cuda"))
    yield block_copies("4,096 attention pages of 32 KiB, random ids", 0.90, [pages], 4096)
    del pages
    for page_bytes in (8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20):
        yield from offload(page_bytes)
    yield quantized_checkpoint()
