"""The packed formats on a grid of all float32 inputs; a card checks every one (on_device.py)."""

import ctypes
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from cuda_on_cpu import compile_host

SOURCE = """
#include "cuda_on_cpu.hpp"
#include "convert_state/formats.cuh"
extern "C" void encode(int format, const float* x, unsigned short* out, long count) {
    for (long i = 0; i < count; ++i)
        out[i] = format == 0   ? E4m3::encode_by_integers(x[i])
                 : format == 1 ? Int8::encode(x[i])
                               : Bf16::encode_by_integers(x[i]);
}
extern "C" void encode_fours(int format, const float4* x, float factor, Four<unsigned char>* out,
                             long count) {
    for (long i = 0; i < count; ++i)
        out[i] = format == 0 ? E4m3::encode_four(x[i], factor) : Int8::encode_four(x[i], factor);
}
"""
E4M3, INT8, BF16 = range(3)
Floats = npt.NDArray[np.float32]


@cache
def library() -> Any:
    return compile_host("formats", SOURCE)


def grid() -> Floats:
    """Return every 2,039th bit pattern, and all that lie next to where rounding changes."""
    sampled = np.arange(0, 1 << 32, 2039, dtype=np.uint64).astype(np.uint32)
    # Sign, exponent and the upper mantissa bits, then the lower ones around 0, 1/2 and 1.
    edges = []
    for kept in (4, 5, 8, 9):
        low = 23 - kept
        tops = np.arange(1 << (9 + kept), dtype=np.uint64) << low
        near = np.array([0, 1, (1 << low) - 1, (1 << low - 1) - 1, 1 << low - 1], np.uint64)
        edges.append((tops[:, None] + near).ravel())
    patterns = np.concatenate((sampled, *edges)).astype(np.uint32)
    floats: Floats = patterns.view(np.float32)
    return floats


def encoded(format_: int, x: Floats) -> "npt.NDArray[np.uint16]":
    out = np.empty(len(x), np.uint16)
    pointers = (x.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p))
    library().encode(format_, *pointers, ctypes.c_long(len(x)))
    return out


def test_e4m3_by_integers_is_torchs_conversion_of_the_clamped_value() -> None:
    x = grid()
    x = x[~np.isnan(x)]
    wanted = torch.from_numpy(x).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    assert np.array_equal(encoded(E4M3, x), wanted.numpy())


def test_bf16_by_integers_is_torchs_conversion() -> None:
    x = grid()
    got = encoded(BF16, x)
    wanted = torch.from_numpy(x).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    nan = np.isnan(x)
    assert np.array_equal(got[~nan], wanted[~nan])
    assert torch.from_numpy(got[nan].view(np.int16)).view(torch.bfloat16).isnan().all()


def test_int8_without_a_clamp_is_the_rounded_value_up_to_what_a_scaled_head_holds() -> None:
    halves = np.arange(-127, 127, dtype=np.float32) + np.float32(0.5)
    beside = [np.nextafter(halves, np.float32(s), dtype=np.float32) for s in (-np.inf, np.inf)]
    x = np.concatenate((grid(), halves, *beside))
    x = x[np.abs(x) <= np.nextafter(np.float32(127), np.float32(128))]
    assert len(x) > 1_000_000
    assert np.array_equal(encoded(INT8, x).astype(np.uint8).view(np.int8), np.rint(x))


def test_a_scaled_value_exceeds_the_largest_by_rounding_only() -> None:
    peaks = grid()
    peaks = peaks[np.isfinite(peaks) & (peaks >= 2.0**-100)]
    for largest in (np.float32(127), np.float32(448)):
        scaled = peaks * (largest / peaks)
        assert scaled.max() <= np.nextafter(largest, np.float32(np.inf))


@pytest.mark.parametrize("format_", [E4M3, INT8])
def test_four_at_a_time_are_the_same_as_one_at_a_time(format_: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(4096).astype(np.float32)
    factor = np.float32((448, 127)[format_]) / np.abs(x).max()
    out = np.empty(len(x), np.uint8)
    library().encode_fours(
        format_,
        x.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_float(factor),
        out.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_long(len(x) // 4),
    )
    assert np.array_equal(out, encoded(format_, x * factor))
