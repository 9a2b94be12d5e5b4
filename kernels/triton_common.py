"""Code that the Triton block kernels share: runs of bytes moved by one program."""

import triton
import triton.language as tl
from hybrid_blocks.kernels.launch import MAX_GRID, TRITON_FEW_SM_UNITS


def triton_grid(num_units: int, max_sms: int | None) -> tuple[int, int, int]:
    """Return (programs, units a program moves at a time, warps a program).

    Without ``max_sms`` a program for every unit. With it one program an SM, which moves a tile of
    units together: small pages fill its threads and their lookups are in flight at once.
    """
    if max_sms is None:
        return min(num_units, MAX_GRID), 1, 4
    return min(-(-num_units // TRITON_FEW_SM_UNITS), max_sms), TRITON_FEW_SM_UNITS, 32


@triton.jit
def locate_unit(segments, units, unit, UNIT_BYTES: tl.constexpr):
    """Return (address in block 0, block stride, bytes, offset in a record) of a unit."""
    segment = segments + tl.load(units + unit * 2).to(tl.int64) * 4
    first = tl.load(units + unit * 2 + 1).to(tl.int64) * UNIT_BYTES
    base = tl.load(segment)
    stride = tl.load(segment + 1)
    left = tl.load(segment + 2) - first
    offset = tl.load(segment + 3)
    return base + first, stride, tl.minimum(left, UNIT_BYTES), offset + first


@triton.jit
def lanes_of(address, nbytes, WIDTH: tl.constexpr, UNIT_BYTES: tl.constexpr):
    """Return the pointers that cover a unit from ``address``, and which lie inside ``nbytes``.

    WIDTH divides the address and the length, which is what lets the compiler join four 4-byte
    lanes into one access of 16 bytes.
    """
    if WIDTH == 16:
        lanes = tl.arange(0, UNIT_BYTES // 4)
        start = tl.multiple_of(address.to(tl.pointer_type(tl.int32)), 16)
        inside = lanes < tl.multiple_of(nbytes // 4, 4)
    elif WIDTH == 8:
        lanes = tl.arange(0, UNIT_BYTES // 4)
        start = tl.multiple_of(address.to(tl.pointer_type(tl.int32)), 8)
        inside = lanes < tl.multiple_of(nbytes // 4, 2)
    elif WIDTH == 4:
        lanes = tl.arange(0, UNIT_BYTES // 4)
        start = address.to(tl.pointer_type(tl.int32))
        inside = lanes < nbytes // 4
    elif WIDTH == 2:
        lanes = tl.arange(0, UNIT_BYTES // 2)
        start = address.to(tl.pointer_type(tl.int16))
        inside = lanes < nbytes // 2
    else:
        lanes = tl.arange(0, UNIT_BYTES)
        start = address.to(tl.pointer_type(tl.int8))
        inside = lanes < nbytes
    return start + lanes, inside


@triton.jit
def locate_units(segments, units, unit, inside, UNIT_BYTES: tl.constexpr):
    """Return what :func:`locate_unit` does, for a vector of units; nothing is read outside."""
    segment = segments + tl.load(units + unit * 2, mask=inside, other=0).to(tl.int64) * 4
    first = tl.load(units + unit * 2 + 1, mask=inside, other=0).to(tl.int64) * UNIT_BYTES
    base = tl.load(segment, mask=inside, other=0)
    stride = tl.load(segment + 1, mask=inside, other=0)
    left = tl.load(segment + 2, mask=inside, other=0) - first
    offset = tl.load(segment + 3, mask=inside, other=0)
    return base + first, stride, tl.minimum(left, UNIT_BYTES), offset + first


@triton.jit
def tile_of(address, nbytes, WIDTH: tl.constexpr, UNIT_BYTES: tl.constexpr):
    """Return what :func:`lanes_of` does, a row for each of several addresses."""
    if WIDTH >= 4:
        lanes = tl.arange(0, UNIT_BYTES // 4)
        start = tl.multiple_of(address.to(tl.pointer_type(tl.int32)), [WIDTH])
        ends = tl.multiple_of(nbytes // 4, [WIDTH // 4])
    elif WIDTH == 2:
        lanes = tl.arange(0, UNIT_BYTES // 2)
        start = address.to(tl.pointer_type(tl.int16))
        ends = nbytes // 2
    else:
        lanes = tl.arange(0, UNIT_BYTES)
        start = address.to(tl.pointer_type(tl.int8))
        ends = nbytes
    return start[:, None] + lanes[None, :], lanes[None, :] < ends[:, None]


@triton.jit
def move_runs(source, target, nbytes, WIDTH: tl.constexpr, UNIT_BYTES: tl.constexpr):
    """Move ``nbytes[i]`` from ``source[i]`` to ``target[i]``; WIDTH divides the addresses."""
    from_, inside = tile_of(source, nbytes, WIDTH, UNIT_BYTES)
    to, _ = tile_of(target, nbytes, WIDTH, UNIT_BYTES)
    tl.store(to, tl.load(from_, mask=inside), mask=inside)
