from importlib import import_module

import pytest
import torch
from hybrid_blocks.kernels import Backend, BlockTensors, StateCodec, convert_state
from hybrid_blocks.kernels.convert_state.cupy import grid_of
from hybrid_blocks.kernels.launch_queue import queue_of
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import BACKENDS, DEVICE, FAST, FEW, int32s, running

FORMATS = (torch.bfloat16, torch.float8_e4m3fn, torch.int8)
PRODUCTS = 2.0**-21  # relative error of the float32 products


def codec_for(
    states: list[torch.Tensor], dtype: torch.dtype, blocks: int, *, pad: int = 0
) -> StateCodec:
    """Make a codec whose packed side is poisoned."""
    packed, scales = [], []
    for state in states:
        elements = state[0].numel()
        flat = torch.full(
            (blocks * (elements + pad) * dtype.itemsize,), 0xFF, dtype=torch.uint8, device=DEVICE
        ).view(dtype)
        strides = (elements + pad, *state[0].contiguous().stride())
        packed.append(flat.as_strided((blocks, *state.shape[1:]), strides))
        scales.append(torch.full((blocks, state.shape[1]), torch.nan, device=DEVICE))
    scaled = None if dtype == torch.bfloat16 else BlockTensors(scales)
    return StateCodec(BlockTensors(states), BlockTensors(packed), scaled)


@st.composite
def states(draw: st.DrawFn) -> list[torch.Tensor]:
    """Draw layers whose heads differ in count, size and magnitude, some with special values."""
    layers = []
    for _ in range(draw(st.integers(1, 2))):
        heads = draw(st.integers(1, 3))
        shape = draw(st.sampled_from(((4, 8), (3, 5), (1, 1), (16, 20), (33, 32))))
        generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
        layer = torch.randn(4, heads, *shape, generator=generator)
        exponents = torch.randint(-40, 40, (4, heads, 1, 1), generator=generator)
        layer = torch.ldexp(layer, exponents)
        special = draw(st.sampled_from((None, 0.0, -0.0, 1e-42, torch.inf, -torch.inf, torch.nan)))
        if special is not None:
            layer[draw(st.integers(0, 3)), 0, 0, 0] = special
        if draw(st.booleans()):
            layer[1, -1] = draw(st.sampled_from((0.0, 2.0**-101, 2.0**-100, 3e38)))
        layers.append(layer.to(DEVICE))
    return layers


def bits(packed: torch.Tensor) -> torch.Tensor:
    return packed.contiguous().view(torch.int16 if packed.itemsize == 2 else torch.int8)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("backend", FAST)
def test_fast_versions_encode_and_decode_to_the_same_bits_as_naive(
    backend: Backend, dtype: torch.dtype
) -> None:
    @FEW
    @given(states(), st.sampled_from((0, 1)), st.sampled_from((None, 1, 2)))
    def check(layers: list[torch.Tensor], pad: int, max_sms: int | None) -> None:
        expected, got = (codec_for(layers, dtype, 5, pad=pad) for _ in range(2))
        src, dst = int32s(3, 1, 1), int32s(0, 4, 2)
        convert_state(expected, src, dst, direction="encode", backend="naive")
        with running(backend):
            # On one SM a thread block has many heads, some in flight while another is encoded.
            convert_state(got, src, dst, direction="encode", backend=backend, max_sms=max_sms)
        for mine, theirs in zip(got.packed.tensors, expected.packed.tensors, strict=True):
            nan = theirs.float().isnan()
            assert torch.equal(mine.float().isnan(), nan)
            assert torch.equal(bits(mine)[~nan], bits(theirs)[~nan])
        if got.scales is not None and expected.scales is not None:
            for mine, theirs in zip(got.scales.tensors, expected.scales.tensors, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
        back = [torch.full_like(layer, torch.nan) for layer in layers]
        back_naive = [torch.full_like(layer, torch.nan) for layer in layers]
        with running(backend):
            decoder = StateCodec(BlockTensors(back), got.packed, got.scales)
            src, dst = int32s(4, 0), int32s(0, 2)
            convert_state(decoder, src, dst, direction="decode", backend=backend, max_sms=max_sms)
        reference = StateCodec(BlockTensors(back_naive), expected.packed, expected.scales)
        convert_state(reference, int32s(4, 0), int32s(0, 2), direction="decode", backend="naive")
        for mine, theirs in zip(back, back_naive, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)

    check()


def bound(state: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the stated error bound of every element, from the definition in float64."""
    x = state.double().abs()
    peak = x.amax(dim=(-2, -1), keepdim=True)
    if dtype == torch.bfloat16:
        return (x * 2.0**-8).clamp(min=2.0**-134)
    if dtype == torch.int8:
        half_step = (peak / 254).expand_as(x)
    else:
        half_step = torch.maximum(x * 2.0**-4, peak / 448 * 2.0**-10)
    stored = torch.where(peak < 2.0**-100, x, half_step)
    return stored + x * PRODUCTS


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_round_trip_stays_within_the_stated_bound(backend: Backend, dtype: torch.dtype) -> None:
    @FEW
    @given(states())
    def check(layers: list[torch.Tensor]) -> None:
        layers = [torch.nan_to_num(layer, 1.0, 2.0, -2.0) for layer in layers]
        codec = codec_for(layers, dtype, 4)
        ids = int32s(0, 1, 2, 3)
        back = [torch.full_like(layer, torch.nan) for layer in layers]
        decoder = StateCodec(BlockTensors(back), codec.packed, codec.scales)
        with running(backend):
            convert_state(codec, ids, ids, direction="encode", backend=backend)
            convert_state(decoder, ids, ids, direction="decode", backend=backend)
        for restored, state in zip(back, layers, strict=True):
            assert ((restored.double() - state.double()).abs() <= bound(state, dtype)).all()

    check()


def test_every_e4m3_value_survives_a_round_trip() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    finite = every[every.isfinite()].view(1, 1, -1).to(DEVICE)  # its largest value is 448
    for backend in BACKENDS:
        codec = codec_for([finite], torch.float8_e4m3fn, 1)
        back = torch.full_like(finite, torch.nan)
        decoder = StateCodec(BlockTensors([back]), codec.packed, codec.scales)
        with running(backend):
            convert_state(codec, int32s(0), int32s(0), direction="encode", backend=backend)
            convert_state(decoder, int32s(0), int32s(0), direction="decode", backend=backend)
        assert torch.equal(back, finite)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_head_that_is_not_finite_comes_back_as_nan_and_spares_its_neighbours(
    backend: Backend, bad: float
) -> None:
    state = torch.randn(1, 3, 4, 4, device=DEVICE)
    state[0, 1, 2, 2] = bad
    codec = codec_for([state], torch.int8, 1)
    back = torch.zeros_like(state)
    decoder = StateCodec(BlockTensors([back]), codec.packed, codec.scales)
    with running(backend):
        convert_state(codec, int32s(0), int32s(0), direction="encode", backend=backend)
        convert_state(decoder, int32s(0), int32s(0), direction="decode", backend=backend)
    assert back[0, 1].isnan().all()
    assert back[0, [0, 2]].isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_heads_larger_than_a_block_holds_are_converted(backend: Backend) -> None:
    state = torch.randn(1, 1, 250, 256, device=DEVICE)  # 250 KiB
    codec = codec_for([state], torch.int8, 1)
    with running(backend):
        convert_state(codec, int32s(0), int32s(0), direction="encode", backend=backend)
    assert codec.scales is not None
    restored = codec.packed.tensors[0].float() * codec.scales.tensors[0][0, 0]
    assert ((restored - state).abs() <= bound(state, torch.int8)).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_large_head_is_converted_again_after_a_small_one(backend: Backend) -> None:
    large, small = torch.randn(1, 1, 64, 64, device=DEVICE), torch.randn(1, 1, 4, 4, device=DEVICE)
    for state in (large, small, large):
        codec = codec_for([state], torch.int8, 1)
        with running(backend):
            convert_state(codec, int32s(0), int32s(0), direction="encode", backend=backend)
        assert codec.packed.tensors[0].abs().max() == 127


def test_heads_are_read_by_fours_only_where_all_are_whole_fours() -> None:
    padded = torch.zeros(2, 3, 8, device=DEVICE)
    packed = torch.zeros(2, 3, 8, device=DEVICE, dtype=torch.bfloat16)
    for elements, is_whole in ((8, True), (4, True), (6, False)):
        state, narrow = padded[..., :elements], packed[..., :elements]
        assert StateCodec(BlockTensors([state]), BlockTensors([narrow])).vectorised is is_whole


@pytest.mark.parametrize(
    ("elements", "threads"), [(128 * 128, 512), (64 * 64, 128), (60_000, 1024), (16, 64)]
)
def test_a_head_has_a_thread_block_that_holds_it(elements: int, threads: int) -> None:
    assert grid_of(2304, elements, None) == (2304, threads)
    assert grid_of(2304, elements, 8) == (8, threads)
    assert grid_of(3, elements, 8) == (3, threads)


def test_a_padded_list_skips_heads_between_others() -> None:
    state = torch.randn(4, 2, 8, 8, device=DEVICE)
    codec = codec_for([state], torch.int8, 4)
    expected = codec_for([state], torch.int8, 4)
    convert_state(expected, int32s(0, 3), int32s(1, 2), direction="encode", backend="naive")
    src = torch.tensor([-1, 0, 99, 3, -1], dtype=torch.int32, device=DEVICE)
    dst = torch.tensor([-1, 1, 0, 2, 9], dtype=torch.int32, device=DEVICE)
    for backend in FAST:
        with running(backend):
            run = import_module(f"hybrid_blocks.kernels.convert_state.{backend}")
            run.encode(queue_of(DEVICE, None), codec, src, dst, 1)
        assert torch.equal(bits(codec.packed.tensors[0]), bits(expected.packed.tensors[0]))


def test_codecs_that_do_not_fit_are_refused() -> None:
    state = torch.zeros(2, 3, 4, 4, device=DEVICE)
    good = codec_for([state], torch.int8, 2)
    with pytest.raises(ValueError, match="int8 needs scales"):
        StateCodec(good.state, good.packed)
    with pytest.raises(ValueError, match="bfloat16 takes no scales"):
        StateCodec(good.state, BlockTensors([state.bfloat16()]), good.scales)
    with pytest.raises(TypeError, match="copy_blocks keeps the format"):
        StateCodec(good.state, BlockTensors([state.clone()]))
    with pytest.raises(TypeError, match="state tensor 0 must be float32"):
        StateCodec(BlockTensors([state.double()]), good.packed, good.scales)
    with pytest.raises(ValueError, match=r"state blocks are \(3, 4, 4\), packed"):
        StateCodec(good.state, BlockTensors([state.to(torch.int8)[..., :2]]), good.scales)
    with pytest.raises(ValueError, match="a head must be contiguous"):
        StateCodec(BlockTensors([state.transpose(2, 3)]), good.packed, good.scales)
    with pytest.raises(ValueError, match="dst holds block 1 twice"):
        convert_state(good, int32s(0, 1), int32s(1, 1), direction="encode")
    with pytest.raises(ValueError, match="direction is 'pack'"):
        convert_state(good, int32s(0), int32s(1), direction="pack")  # type: ignore[arg-type]
