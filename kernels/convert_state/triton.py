"""Triton: one program a head; integer arithmetic for the formats, so that every target has them."""

import triton
import triton.language as tl
from hybrid_blocks.kernels.convert_state.codec import LARGEST, SMALLEST_HEAD, StateCodec
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch import MAX_GRID
from hybrid_blocks.kernels.launch_queue import LaunchQueue, on_its_stream

# tl.max itself cannot be interpreted when Triton was imported before the interpreter was asked for.
from triton.language.standard import _elementwise_max

MAX_CHUNK = 16384  # elements a program holds at once
VALUES_A_WARP = 1024  # 32 a lane: what a lane holds, scaled and packed, fits 64 registers

INFINITE = tl.constexpr(0x7F800000)
MAGNITUDE = tl.constexpr(0x7FFFFFFF)
TINY_HEAD = tl.constexpr(SMALLEST_HEAD)


@on_its_stream
def encode(
    queue: LaunchQueue, codec: StateCodec, src: IdList, dst: IdList, max_sms: int | None
) -> None:
    """Launch float32 to packed."""
    _launch(_encode, queue, codec, (src, dst), max_sms)


@on_its_stream
def decode(
    queue: LaunchQueue, codec: StateCodec, src: IdList, dst: IdList, max_sms: int | None
) -> None:
    """Launch packed to float32."""
    _launch(_decode, queue, codec, (dst, src), max_sms)


def _launch(
    kernel: "triton.JITFunction[..., None]",
    queue: LaunchQueue,
    codec: StateCodec,
    lists: tuple[IdList, IdList],
    max_sms: int | None,
) -> None:
    slots, blocks = queue.on_device(lists)
    layers, heads = codec.tables()
    total = len(heads) * len(slots)
    chunk = min(MAX_CHUNK, triton.next_power_of_2(codec.head_elements))
    kernel[(min(total, MAX_GRID if max_sms is None else max_sms),)](
        layers,
        heads,
        len(heads),
        total,
        slots,
        blocks,
        codec.state.num_blocks,
        codec.packed.num_blocks,
        FORMAT=codec.format,
        LARGEST=LARGEST.get(codec.format, 0.0),
        VECTORISED=codec.vectorised,
        ONE_CHUNK=codec.head_elements <= chunk,
        CHUNK=chunk,
        num_warps=min(max(chunk // VALUES_A_WARP, 4), 16),
        # A fused multiply-add would round once where the reference rounds twice.
        enable_fp_fusion=False,
    )


@triton.jit
def _locate(work, layers, heads, num_heads, slots, blocks, num_slots, num_blocks):
    item = work // num_heads
    head = heads + (work % num_heads) * 2
    layer = layers + tl.load(head) * 10
    index = tl.load(head + 1)
    slot = tl.load(slots + item).to(tl.int64)
    block = tl.load(blocks + item).to(tl.int64)
    valid = (slot >= 0) & (slot < num_slots) & (block >= 0) & (block < num_blocks)
    state = tl.load(layer + 2) + slot * tl.load(layer + 3) + index * tl.load(layer + 4)
    packed = tl.load(layer + 5) + block * tl.load(layer + 6) + index * tl.load(layer + 7)
    scale = tl.load(layer + 8) + block * tl.load(layer + 9) + index * 4
    return tl.load(layer + 1), state, packed, scale.to(tl.pointer_type(tl.float32)), valid


@triton.jit
def _state_lanes(address, first, count, VECTORISED: tl.constexpr, CHUNK: tl.constexpr):
    lanes = tl.arange(0, CHUNK)
    start = (address + first * 4).to(tl.pointer_type(tl.float32))
    left = count - first
    if VECTORISED:
        start = tl.multiple_of(start, 16)
        left = left // 4 * 4
    return start + lanes, lanes < left


@triton.jit
def _packed_lanes(
    address,
    first,
    count,
    FORMAT: tl.constexpr,
    VECTORISED: tl.constexpr,
    CHUNK: tl.constexpr,
):
    lanes = tl.arange(0, CHUNK)
    left = count - first
    if VECTORISED:
        left = left // 4 * 4
    if FORMAT == "bfloat16":
        start = (address + first * 2).to(tl.pointer_type(tl.uint16))
        if VECTORISED:
            start = tl.multiple_of(start, 8)
    else:
        start = (address + first).to(tl.pointer_type(tl.uint8))
        if VECTORISED:
            start = tl.multiple_of(start, 4)
    return start + lanes, lanes < left


@triton.jit
def _bits(x):
    return x.to(tl.int32, bitcast=True)


@triton.jit
def _pack(x, FORMAT: tl.constexpr, LARGEST: tl.constexpr):
    """Round scaled values to the stored format, to nearest and half to even."""
    if FORMAT == "bfloat16":
        u = _bits(x)
        rounded = (u + 0x7FFF + ((u >> 16) & 1)) >> 16
        stored = tl.where((u & MAGNITUDE) > INFINITE, (u >> 16) | 0x40, rounded).to(tl.uint16)
    elif FORMAT == "int8":
        # Adding 1.5 * 2**23 leaves the nearest integer in the low byte. A scaled value exceeds
        # 127 by rounding only, so nothing is clamped.
        stored = (_bits(x + 12582912.0) & 0xFF).to(tl.uint8)
    else:
        magnitude = tl.minimum(tl.abs(x), LARGEST)
        u = _bits(magnitude)
        # Below 2**-6 the spacing is 2**-9, which adding 2**14 rounds to.
        tiny = _bits(magnitude + 16384.0) - 0x46800000
        normal = ((u + 0x7FFFF + ((u >> 20) & 1)) >> 20) - (120 << 3)
        sign = (_bits(x) >> 24) & 0x80
        stored = (sign | tl.where(magnitude < 0.015625, tiny, normal)).to(tl.uint8)
    return stored


@triton.jit
def _unpack(stored, FORMAT: tl.constexpr):
    if FORMAT == "bfloat16":
        x = (stored.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    elif FORMAT == "int8":
        x = stored.to(tl.int8, bitcast=True).to(tl.float32)
    else:
        magnitude = (stored & 0x7F).to(tl.int32)
        normal = ((magnitude << 20) + (120 << 23)).to(tl.float32, bitcast=True)
        x = tl.where(magnitude < 8, magnitude.to(tl.float32) * 0.001953125, normal)
        x = tl.where(magnitude == 0x7F, float("nan"), x)
        x = tl.where(stored >= 0x80, -x, x)
    return x


@triton.jit(do_not_specialize=["num_heads", "total", "num_slots", "num_blocks"])
def _encode(
    layers,
    heads,
    num_heads,
    total: tl.int64,
    slots,
    blocks,
    num_slots,
    num_blocks,
    FORMAT: tl.constexpr,
    LARGEST: tl.constexpr,
    VECTORISED: tl.constexpr,
    ONE_CHUNK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    for work in tl.range(tl.program_id(0).to(tl.int64), total, tl.num_programs(0)):
        count, state, packed, scale, valid = _locate(
            work, layers, heads, num_heads, slots, blocks, num_slots, num_blocks
        )
        if valid:
            _encode_head(count, state, packed, scale, FORMAT, LARGEST, VECTORISED, ONE_CHUNK, CHUNK)


@triton.jit
def _encode_head(
    count,
    state,
    packed,
    scale,
    FORMAT: tl.constexpr,
    LARGEST: tl.constexpr,
    VECTORISED: tl.constexpr,
    ONE_CHUNK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    from_, inside = _state_lanes(state, 0, count, VECTORISED, CHUNK)
    x = tl.load(from_, mask=inside, other=0.0)
    if FORMAT == "bfloat16":
        inverse = 1.0
    else:
        # Without the sign the bit pattern orders floats by magnitude, NaN above infinity.
        peaks = _bits(x) & MAGNITUDE
        if not ONE_CHUNK:
            for first in tl.range(CHUNK, count, CHUNK):
                from_, inside = _state_lanes(state, first, count, VECTORISED, CHUNK)
                more = tl.load(from_, mask=inside, other=0.0)
                peaks = tl.maximum(peaks, _bits(more) & MAGNITUDE)
        peak_bits = tl.reduce(peaks, 0, _elementwise_max)
        peak = peak_bits.to(tl.float32, bitcast=True)
        finite = peak_bits < INFINITE
        usable = finite & (peak >= TINY_HEAD)
        divisor = tl.where(usable, peak, 1.0)
        inverse = tl.where(usable, tl.div_rn(LARGEST + divisor * 0.0, divisor), 0.0)
        empty = tl.where(finite, 0.0, float("nan"))
        ratio = tl.div_rn(divisor, LARGEST + divisor * 0.0)
        tl.store(scale, tl.where(usable, ratio, empty))
    if ONE_CHUNK:
        _store_packed(x, packed, 0, count, inverse, FORMAT, LARGEST, VECTORISED, CHUNK)
    else:
        for first in tl.range(0, count, CHUNK):
            from_, inside = _state_lanes(state, first, count, VECTORISED, CHUNK)
            x = tl.load(from_, mask=inside, other=0.0)
            _store_packed(x, packed, first, count, inverse, FORMAT, LARGEST, VECTORISED, CHUNK)


@triton.jit
def _store_packed(
    x,
    packed,
    first,
    count,
    inverse,
    FORMAT: tl.constexpr,
    LARGEST: tl.constexpr,
    VECTORISED: tl.constexpr,
    CHUNK: tl.constexpr,
):
    if FORMAT == "bfloat16":
        stored = _pack(x, FORMAT, LARGEST)
    else:
        # A head without a usable scale is stored as zeros, also where it is not finite.
        stored = _pack(tl.where(inverse > 0.0, x, 0.0) * inverse, FORMAT, LARGEST)
    to, inside = _packed_lanes(packed, first, count, FORMAT, VECTORISED, CHUNK)
    tl.store(to, stored, mask=inside)


@triton.jit(do_not_specialize=["num_heads", "total", "num_slots", "num_blocks"])
def _decode(
    layers,
    heads,
    num_heads,
    total: tl.int64,
    slots,
    blocks,
    num_slots,
    num_blocks,
    FORMAT: tl.constexpr,
    LARGEST: tl.constexpr,
    VECTORISED: tl.constexpr,
    ONE_CHUNK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    for work in tl.range(tl.program_id(0).to(tl.int64), total, tl.num_programs(0)):
        count, state, packed, scale, valid = _locate(
            work, layers, heads, num_heads, slots, blocks, num_slots, num_blocks
        )
        if valid:
            factor = 1.0
            if FORMAT != "bfloat16":
                factor = tl.load(scale)
            for first in tl.range(0, count, CHUNK):
                from_, inside = _packed_lanes(packed, first, count, FORMAT, VECTORISED, CHUNK)
                stored = tl.load(from_, mask=inside, other=0)
                to, inside = _state_lanes(state, first, count, VECTORISED, CHUNK)
                tl.store(to, _unpack(stored, FORMAT) * factor, mask=inside)
