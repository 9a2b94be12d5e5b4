"""Triton: one program a head, which it holds in registers, or some of the bytes before."""

import triton
import triton.language as tl
from hybrid_blocks.kernels.convert_states.pools import StatePools
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch import MAX_GRID, TRITON_UNIT_BYTES
from hybrid_blocks.kernels.launch_queue import LaunchQueue, on_its_stream
from hybrid_blocks.kernels.triton_common import lanes_of

MAX_HELD = 1 << 14  # numbers of a head that a program holds; of more it reads each twice
NUMBERS_A_WARP = 1024  # as many as 32 lanes take by eight 16-byte loads


@on_its_stream
def convert_states(
    queue: LaunchQueue, pools: StatePools, src: IdList, dst: IdList, keeps: bool
) -> None:
    """Launch the conversions."""
    layout, widths = pools.layout, pools.widths
    src, dst = queue.on_device((src, dst))
    block = min(triton.next_power_of_2(layout.numbers), MAX_HELD)
    pieces = layout.heads + -(-layout.num_same // TRITON_UNIT_BYTES)
    total = len(src) * pools.num_layers * pieces
    _convert_states[(min(total, MAX_GRID),)](
        pools.table(),
        pools.num_layers,
        src,
        dst,
        total,
        layout.num_running,
        layout.num_kept,
        layout.num_same,
        layout.heads,
        KEEPS=keeps,
        FORMAT=layout.state_format,
        NUMBERS=layout.numbers,
        BLOCK=block,
        SAME_WIDTH=widths.same,
        HEAD_WIDTH=widths.heads,
        CODE_WIDTH=widths.codes,
        UNIT_BYTES=TRITON_UNIT_BYTES,
        num_warps=max(1, block // NUMBERS_A_WARP),
        # A product and a sum that are rounded at once have other bytes.
        enable_fp_fusion=False,
    )


@triton.jit(
    do_not_specialize=["num_layers", "total", "num_running", "num_kept", "num_same", "heads"]
)
def _convert_states(
    pages,
    num_layers,
    src,
    dst,
    total: tl.int64,
    num_running,
    num_kept,
    num_same: tl.int64,
    heads,
    KEEPS: tl.constexpr,
    FORMAT: tl.constexpr,
    NUMBERS: tl.constexpr,
    BLOCK: tl.constexpr,
    SAME_WIDTH: tl.constexpr,
    HEAD_WIDTH: tl.constexpr,
    CODE_WIDTH: tl.constexpr,
    UNIT_BYTES: tl.constexpr,
):
    scale_bytes: tl.constexpr = 0 if FORMAT == "bf16" else 4
    head_bytes: tl.constexpr = NUMBERS * 2 if FORMAT == "bf16" else NUMBERS + 4
    pieces = heads + (num_same + UNIT_BYTES - 1) // UNIT_BYTES
    for work in tl.range(tl.program_id(0).to(tl.int64), total, tl.num_programs(0)):
        piece = work % pieces
        page = work // pieces
        row = pages + page % num_layers * 4
        source = tl.load(src + page // num_layers).to(tl.int64)
        target = tl.load(dst + page // num_layers).to(tl.int64)
        if KEEPS:
            running_id, kept_id = source, target
        else:
            running_id, kept_id = target, source
        known = (running_id >= 0) & (running_id < num_running)
        known = known & (kept_id >= 0) & (kept_id < num_kept)
        if known:
            running = tl.load(row) + running_id * tl.load(row + 1)
            kept = tl.load(row + 2) + kept_id * tl.load(row + 3)
            if piece < heads:
                head = running + num_same + piece * (NUMBERS * 4)
                stored = kept + num_same + piece * head_bytes
                codes = stored + scale_bytes
                if KEEPS:
                    _keep_head(head, stored, codes, FORMAT, NUMBERS, BLOCK, HEAD_WIDTH, CODE_WIDTH)
                else:
                    _restore_head(
                        head, stored, codes, FORMAT, NUMBERS, BLOCK, HEAD_WIDTH, CODE_WIDTH
                    )
            else:
                first = (piece - heads) * UNIT_BYTES
                nbytes = tl.minimum(num_same - first, UNIT_BYTES)
                in_running, inside = lanes_of(running + first, nbytes, SAME_WIDTH, UNIT_BYTES)
                in_kept, _inside = lanes_of(kept + first, nbytes, SAME_WIDTH, UNIT_BYTES)
                if KEEPS:
                    tl.store(in_kept, tl.load(in_running, mask=inside), mask=inside)
                else:
                    tl.store(in_running, tl.load(in_kept, mask=inside), mask=inside)


@triton.jit
def _keep_head(
    head,
    stored,
    codes,
    FORMAT: tl.constexpr,
    NUMBERS: tl.constexpr,
    BLOCK: tl.constexpr,
    HEAD_WIDTH: tl.constexpr,
    CODE_WIDTH: tl.constexpr,
):
    largest: tl.constexpr = 448.0 if FORMAT == "fp8" else 127.0
    if FORMAT == "bf16":
        for first in tl.range(0, NUMBERS, BLOCK):
            bits, inside = _load_numbers(head, first, NUMBERS, BLOCK, HEAD_WIDTH)
            _store_halves(codes, first, _to_bf16(bits), inside, BLOCK, CODE_WIDTH)
    elif NUMBERS <= BLOCK:
        bits, inside = _load_numbers(head, 0, NUMBERS, BLOCK, HEAD_WIDTH)
        inverse, is_kept = _scale(_largest(bits & 0x7FFFFFFF), stored, largest, CODE_WIDTH)
        code = _to_code(bits, inverse, is_kept, FORMAT)
        tl.store(_lanes(codes, 0, BLOCK, tl.int8, CODE_WIDTH), code, mask=inside)
    else:
        most = tl.full([BLOCK], 0, tl.int32)
        for first in tl.range(0, NUMBERS, BLOCK):
            bits, inside = _load_numbers(head, first, NUMBERS, BLOCK, HEAD_WIDTH)
            most = tl.maximum(most, bits & 0x7FFFFFFF)
        inverse, is_kept = _scale(_largest(most), stored, largest, CODE_WIDTH)
        for first in tl.range(0, NUMBERS, BLOCK):
            bits, inside = _load_numbers(head, first, NUMBERS, BLOCK, HEAD_WIDTH)
            code = _to_code(bits, inverse, is_kept, FORMAT)
            tl.store(_lanes(codes, first, BLOCK, tl.int8, CODE_WIDTH), code, mask=inside)


@triton.jit
def _restore_head(
    head,
    stored,
    codes,
    FORMAT: tl.constexpr,
    NUMBERS: tl.constexpr,
    BLOCK: tl.constexpr,
    HEAD_WIDTH: tl.constexpr,
    CODE_WIDTH: tl.constexpr,
):
    if FORMAT != "bf16":
        scale = _load_word(stored, CODE_WIDTH).to(tl.float32, bitcast=True)
    for first in tl.range(0, NUMBERS, BLOCK):
        inside = first + tl.arange(0, BLOCK) < NUMBERS
        if FORMAT == "bf16":
            bits = _load_halves(codes, first, inside, BLOCK, CODE_WIDTH).to(tl.int32) << 16
        else:
            code = tl.load(_lanes(codes, first, BLOCK, tl.int8, CODE_WIDTH), mask=inside, other=0)
            value = _of_float8(code) if FORMAT == "fp8" else code.to(tl.float32)
            bits = (value * scale).to(tl.int32, bitcast=True)
        tl.store(_lanes(head, first, BLOCK, tl.int32, HEAD_WIDTH), bits, mask=inside)


# --- places --------------------------------------------------------------------------------------


@triton.jit
def _lanes(address, first, BLOCK: tl.constexpr, TYPE: tl.constexpr, WIDTH: tl.constexpr):
    """Return pointers to ``BLOCK`` numbers from ``first`` on; WIDTH divides their address."""
    start = tl.multiple_of(address.to(tl.pointer_type(TYPE)), WIDTH)
    return start + (first + tl.arange(0, BLOCK))


@triton.jit
def _load_numbers(
    head, first, NUMBERS: tl.constexpr, BLOCK: tl.constexpr, HEAD_WIDTH: tl.constexpr
):
    """Return the bits of numbers from ``first`` on, zeros beyond the head, and which are inside."""
    inside = first + tl.arange(0, BLOCK) < NUMBERS
    lanes = _lanes(head, first, BLOCK, tl.int32, HEAD_WIDTH)
    return tl.load(lanes, mask=inside, other=0), inside


@triton.jit
def _store_halves(codes, first, value, inside, BLOCK: tl.constexpr, CODE_WIDTH: tl.constexpr):
    """Store 16 bits a number, by bytes where the address is odd."""
    if CODE_WIDTH >= 2:
        tl.store(_lanes(codes, first, BLOCK, tl.int16, CODE_WIDTH), value, mask=inside)
    else:
        low = codes.to(tl.pointer_type(tl.int8)) + 2 * (first + tl.arange(0, BLOCK))
        tl.store(low, value.to(tl.int8), mask=inside)
        tl.store(low + 1, (value >> 8).to(tl.int8), mask=inside)


@triton.jit
def _load_halves(codes, first, inside, BLOCK: tl.constexpr, CODE_WIDTH: tl.constexpr):
    """Return what :func:`_store_halves` stored."""
    if CODE_WIDTH >= 2:
        lanes = _lanes(codes, first, BLOCK, tl.int16, CODE_WIDTH)
        return tl.load(lanes, mask=inside, other=0)
    low = codes.to(tl.pointer_type(tl.int8)) + 2 * (first + tl.arange(0, BLOCK))
    lower = tl.load(low, mask=inside, other=0).to(tl.int16) & 0xFF
    return lower | (tl.load(low + 1, mask=inside, other=0).to(tl.int16) << 8)


@triton.jit
def _store_word(address, word, CODE_WIDTH: tl.constexpr):
    """Store 32 bits, by bytes where no multiple of 4 bytes is sure."""
    if CODE_WIDTH >= 4:
        tl.store(address.to(tl.pointer_type(tl.int32)), word)
    else:
        at = tl.arange(0, 4)
        tl.store(address.to(tl.pointer_type(tl.int8)) + at, (word >> (8 * at)).to(tl.int8))


@triton.jit
def _load_word(address, CODE_WIDTH: tl.constexpr):
    """Return what :func:`_store_word` stored."""
    if CODE_WIDTH >= 4:
        return tl.load(address.to(tl.pointer_type(tl.int32)))
    start = address.to(tl.pointer_type(tl.int8))
    low = (tl.load(start).to(tl.int32) & 0xFF) | ((tl.load(start + 1).to(tl.int32) & 0xFF) << 8)
    high = (tl.load(start + 2).to(tl.int32) & 0xFF) | (tl.load(start + 3).to(tl.int32) << 8)
    return low | (high << 16)


# --- numbers -------------------------------------------------------------------------------------
#
# By bits, as the Rust codec: each sum and product is rounded once, to nearest, ties to even.


@triton.jit
def _largest(values):
    # The interpreter cannot call tl.max where Triton was imported for a device.
    return tl.reduce(values, 0, tl.standard._elementwise_max)


@triton.jit
def _scale(peak, stored, LARGEST: tl.constexpr, CODE_WIDTH: tl.constexpr):
    """Store the scale of a head whose largest magnitude has the bits ``peak``.

    Returns the factor that maps it onto LARGEST, and whether the head is more than a scale.
    """
    is_finite = peak < 0x7F800000
    is_kept = is_finite & (peak >= 0x0D800000)  # 2^-100
    magnitude = tl.where(is_kept, peak, 0x3F800000).to(tl.float32, bitcast=True)
    largest = tl.full([], LARGEST, tl.float32)
    scale = tl.div_rn(magnitude, largest).to(tl.int32, bitcast=True)
    _store_word(stored, tl.where(is_kept, scale, tl.where(is_finite, 0, 0x7FC00000)), CODE_WIDTH)
    return tl.div_rn(largest, magnitude), is_kept


@triton.jit
def _to_code(bits, inverse, is_kept, FORMAT: tl.constexpr):
    # What a head of an infinity would come to is not computed.
    value = tl.where(is_kept, bits, 0).to(tl.float32, bitcast=True) * inverse
    if FORMAT == "fp8":
        return tl.where(is_kept, _to_float8(value), 0).to(tl.int8)
    # Adding 1.5 * 2^23 leaves the nearest whole number in the low byte.
    return (value + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)


@triton.jit
def _to_float8(value):
    bits = value.to(tl.int32, bitcast=True)
    magnitude = tl.minimum(bits & 0x7FFFFFFF, 0x43E00000)  # 448
    # Below 2^-6 the spacing is 2^-9, which adding 2^14 rounds to.
    small = (magnitude.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True)
    normal = (magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20
    code = tl.where(magnitude < 0x3C800000, small - 0x46800000, normal - (120 << 3))
    return ((bits >> 24) & 0x80) | code


@triton.jit
def _of_float8(code):
    bits = code.to(tl.int32)
    magnitude = bits & 0x7F
    small = (magnitude.to(tl.float32) * 0.001953125).to(tl.int32, bitcast=True)
    normal = (magnitude << 20) + (120 << 23)
    value = tl.where(magnitude < 8, small, normal)
    value = tl.where(magnitude == 0x7F, 0x7FC00000, value)
    return (value | ((bits & 0x80) << 24)).to(tl.float32, bitcast=True)


@triton.jit
def _to_bf16(bits):
    wide = bits.to(tl.uint32, bitcast=True)
    rounded = (wide + 0x7FFF + ((wide >> 16) & 1)) >> 16
    is_nan = (wide & 0x7FFFFFFF) > 0x7F800000
    return tl.where(is_nan, (wide >> 16) | 0x40, rounded).to(tl.int16)
