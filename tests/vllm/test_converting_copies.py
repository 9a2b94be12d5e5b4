"""Checkpoints in another format have the bytes of the Rust codec, at the places of the plan."""

import gc
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hybrid_blocks._core.offload import ChunkCodec
from hybrid_blocks.kernels.convert_states import naive
from hybrid_blocks.model import Layer, Model
from hybrid_blocks.model.layer import GatedDeltaNet, StateFormat
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.vllm.level import CHECKPOINTS
from hybrid_blocks.vllm.worker import block_copies, kernel_copies
from hybrid_blocks.vllm.worker.copies import ConvertingCopy, Recipe
from hypothesis import example, given, settings
from hypothesis import strategies as st
from natural.arena import Arena
from natural.engine import Engine, installed
from natural.test_copies import FULL, LATENT, SLABS, STATE
from plan_oracle import StateLayer
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy

# In a tuple, as the plugin replaces what modules name.
FUNCTIONS = (
    block_copies.vllm_copy_kv_cache_blocks_inplace,
    block_copies.copy_kv_cache_blocks_inplace,
)
FORMATS: list[StateFormat] = ["bf16", "fp8", "int8"]
HEADS, NUMBERS = 3, 37
EDGES = [0.0, -0.0, 1.0, -448.0, 2.0**-149, 2.0**-100, 2.0**-101, 3e38, float("inf"), float("nan")]
# A head's largest magnitude, and a number that a factor rounded twice brings to another neighbour.
TIES = [
    *(float.fromhex("0x1.4510bep+0"), float.fromhex("0x1.47ap-8")),
    *(float.fromhex("0x1.d0327ap+0"), float.fromhex("0x1.3afdaep-5")),
]
FLOATS = st.one_of(
    st.sampled_from(EDGES), st.floats(width=32), st.floats(-2.0, 2.0, width=32, allow_nan=False)
)


def by_rust(states: torch.Tensor, state_format: StateFormat) -> tuple[Any, Any]:
    """The bytes that the codec of offload stores, and those that come back."""
    parts = [("recurrent", 1, HEADS, NUMBERS * 4, True)]
    codec = ChunkCodec(parts, tp_size=1, state_format=state_format)
    stored = np.zeros(codec.stored_bytes, np.uint8)
    back = np.zeros(codec.rank_bytes, np.uint8)
    codec.encode(states.numpy().view(np.uint8).ravel(), stored)
    codec.decode(stored, back)
    return stored, back


@pytest.mark.parametrize("state_format", FORMATS)
@given(numbers=st.lists(FLOATS, min_size=1, max_size=12))
@example(numbers=[0.0])
@example(numbers=EDGES)
@example(numbers=TIES[:2])
@example(numbers=TIES[2:])
@settings(max_examples=examples(60), deadline=None)
def test_the_bytes_are_the_rust_codecs(state_format: StateFormat, numbers: list[float]) -> None:
    states = torch.from_numpy(np.resize(np.array(numbers, np.float32), (HEADS, NUMBERS)))
    stored, back = by_rust(states, state_format)
    ours = naive.encode(states, state_format)
    restored = naive.decode(torch.from_numpy(stored).view(HEADS, -1), state_format)
    if state_format == "bf16":
        # A NaN is a NaN in any bits.
        is_number = ~states.isnan()
        theirs = torch.from_numpy(stored).view(torch.int16).view(HEADS, NUMBERS)
        assert torch.equal(ours.view(torch.int16)[is_number], theirs[is_number])
        assert ours.view(torch.bfloat16).isnan().equal(states.isnan())
    else:
        assert torch.equal(ours.ravel(), torch.from_numpy(stored))
    expected = torch.from_numpy(back).view(torch.float32).view(HEADS, NUMBERS)
    assert torch.equal(restored.isnan(), expected.isnan())
    assert torch.equal(restored.nan_to_num(nan=0.0), expected.nan_to_num(nan=0.0))


@pytest.fixture(autouse=True)
def natural() -> Iterator[None]:
    with installed():
        yield


GDN = GatedDeltaNet(
    key_heads=2, value_heads=4, key_dim=16, value_dim=24, conv_kernel=4, ssm_dtype="float32"
)
MODELS: dict[str, list[Any]] = {
    "one region": [STATE, STATE, FULL, STATE, FULL],
    "delta net": [GDN, FULL, GDN, GDN],
    "latent attention": [STATE, LATENT, STATE, LATENT, STATE],
}


def arena_of(name: str, checkpoint_format: StateFormat, monkeypatch: pytest.MonkeyPatch) -> Arena:
    monkeypatch.setenv(CHECKPOINTS, f"learned/format={checkpoint_format}")
    layers = tuple(Layer(depth, cache) for depth, cache in enumerate(MODELS[name]))
    model = Model(name=name, model_type="made", num_layers=len(layers), layers=layers)
    deployment = Deployment(max_model_len=256, mamba_ssm_dtype="float32")
    arena = Arena(Engine(model, deployment, 2**28), SLABS, "cpu")
    generator = torch.Generator().manual_seed(1)
    for layer in states_of(arena):
        for part in layer.kv_cache:
            values = torch.randn(part.shape, generator=generator) * 3
            part.copy_(values.to(part.dtype))
    return arena


def states_of(arena: Arena) -> list[StateLayer]:
    return [layer for layer in arena.engine.layers.values() if isinstance(layer, StateLayer)]


def group_of(arena: Arena, name: str) -> int:
    groups = arena.config.kv_cache_groups
    return next(at for at, group in enumerate(groups) if name in group.layer_names)


def copies_of(arena: Arena, pairs: list[tuple[int, int]], *, keeps: bool) -> list[Any]:
    recipes = enumerate(arena.config.recipes)
    own = [(group, recipe) for group, recipe in recipes if recipe is not None]
    return [ConvertingCopy(*pair, group, keeps, recipe) for group, recipe in own for pair in pairs]


def run(arena: Arena, copies: list[Any]) -> None:
    # As workers get them.
    received = pickle.loads(pickle.dumps(copies))
    FUNCTIONS[1](arena.runner_kv_caches, SLABS, received)


def raw(arena: Arena) -> Any:
    """All bytes of the arena, by region and slab."""
    storage = next(iter(arena.views.values())).untyped_storage()
    own = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return np.swapaxes(own.reshape(arena.num_regions, SLABS, -1), 0, 1)


@pytest.mark.parametrize("batch_bytes", [1, 40_000, 2**24])
@pytest.mark.parametrize("state_format", FORMATS)
@pytest.mark.parametrize("name", MODELS)
def test_a_state_comes_back_from_a_checkpoint_within_the_bound(
    name: str, state_format: StateFormat, batch_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(naive, "BATCH_BYTES", batch_bytes)
    arena = arena_of(name, state_format, monkeypatch)
    before = raw(arena).copy()
    parts = [part for layer in states_of(arena) for part in layer.kv_cache]
    known = [part.clone() for part in parts]
    cut = arena.config.blocks_per_slab[-1]
    assert cut > 1
    # States of slabs 1 to 3 into slab 4 and on, and back in another order into slabs that are free.
    kept = [4 * cut, 4 * cut + 1, 5 * cut]
    run(arena, copies_of(arena, list(zip((1, 2, 3), kept, strict=True)), keeps=True))
    assert (raw(arena)[[0, 1, 2, 3, 6]] == before[[0, 1, 2, 3, 6]]).all()
    kept_bytes = raw(arena)[[4, 5]].copy()
    run(arena, copies_of(arena, list(zip(kept, (2, 3, 6), strict=True)), keeps=False))
    assert (raw(arena)[[0, 1]] == before[[0, 1]]).all()
    assert (raw(arena)[[4, 5]] == kept_bytes).all()
    for part, first in zip(parts, known, strict=True):
        found, expected = part[[2, 3, 6]].float(), first[[1, 2, 3]].float()
        if part.dtype != torch.float32:
            assert torch.equal(found, expected)
            continue
        peak = expected.abs().flatten(2).amax(-1)[..., None, None]
        bound = {
            "bf16": expected.abs() * 2**-8,
            "int8": peak / 254,
            "fp8": torch.maximum(expected.abs() * 2**-4, peak * 2**-10 / 448),
        }[state_format]
        assert ((found - expected).abs() <= bound * 1.000001).all()
        assert not torch.equal(found, expected)


def test_checkpoints_of_a_slab_share_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is written alone, and changes bytes that no other changes, all within its slab."""
    arena = arena_of("latent attention", "int8", monkeypatch)
    slabs = raw(arena)
    slabs[:] = np.random.default_rng(0).integers(0, 256, slabs.shape, np.uint8)
    cut = arena.config.blocks_per_slab[-1]
    changed = np.zeros(slabs.shape[1:], np.int64)
    for block in range(4 * cut, 5 * cut):
        touched = np.zeros_like(changed)
        for seed in range(2):
            for layer in states_of(arena):
                for part in layer.kv_cache:
                    part[1] = torch.randn(part[1].shape).to(part.dtype) * (seed + 1)
            before = raw(arena).copy()
            run(arena, copies_of(arena, [(1, block)], keeps=True))
            differs = raw(arena) != before
            assert not differs[[0, 1, 2, 3, 5, 6]].any()
            touched |= differs[4]
        changed += touched
    assert changed.max() == 1


def test_plain_copies_go_on_beside_copies_that_convert(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = arena_of("one region", "int8", monkeypatch)
    before = raw(arena).copy()
    cut = arena.config.blocks_per_slab[-1]
    run(arena, [KVCacheBlockCopy(1, 2), *copies_of(arena, [(1, 4 * cut)], keeps=True)])
    assert (raw(arena)[2] == before[1]).all()
    assert (raw(arena)[4] != before[4]).any()


def test_vllms_own_function_refuses_a_copy_that_converts(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = arena_of("one region", "int8", monkeypatch)
    before = raw(arena).copy()
    with pytest.raises((TypeError, ValueError)):
        FUNCTIONS[0](arena.runner_kv_caches, SLABS, copies_of(arena, [(1, 20)], keeps=True))
    assert (raw(arena) == before).all()


def test_tensors_of_another_allocation_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = arena_of("one region", "int8", monkeypatch)
    recipe = next(filter(None, arena.config.recipes))
    assert isinstance(recipe, Recipe)
    with pytest.raises(RuntimeError, match="leave out format="):
        FUNCTIONS[1]([torch.zeros(4)], 1, [ConvertingCopy(1, 4, 1, True, recipe)])


def failing(*_: object, **__: object) -> None:
    raise OSError("no compiler")


def test_torch_converts_where_the_kernels_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    arena, other = (arena_of("one region", "int8", monkeypatch) for _ in range(2))
    cut = arena.config.blocks_per_slab[-1]
    seen: list[Any] = []
    monkeypatch.setattr(kernel_copies.logger, "warning", lambda *text: seen.append(text))
    kernel_copies._warn.cache_clear()
    run(other, copies_of(other, [(1, 4 * cut)], keeps=True))
    assert not seen
    monkeypatch.setattr(kernel_copies, "convert_states", failing)
    for _ in range(2):
        run(arena, copies_of(arena, [(1, 4 * cut)], keeps=True))
    assert (raw(arena) == raw(other)).all()
    assert [text[1] for text in seen] == ["OSError: no compiler"]


def test_an_error_after_a_launch_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = arena_of("one region", "int8", monkeypatch)
    copies = copies_of(arena, [(1, 4 * arena.config.blocks_per_slab[-1])], keeps=True)
    run(arena, copies)
    for known in list(kernel_copies._known().values()):
        for found in known.values():
            found.group.launches[0, "keep_states"] = None
    monkeypatch.setattr(kernel_copies, "convert_states", failing)
    with pytest.raises(OSError, match="no compiler"):
        run(arena, copies)


def test_pools_are_described_once_and_go_with_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = arena_of("one region", "int8", monkeypatch)
    copies = copies_of(arena, [(1, 4 * arena.config.blocks_per_slab[-1])], keeps=True)
    run(arena, copies)
    with monkeypatch.context() as patch:
        patch.setattr(kernel_copies, "StatePools", failing)
        run(arena, copies)
    before = len(kernel_copies._known())
    assert before
    del arena
    gc.collect()
    assert len(kernel_copies._known()) == before - 1
