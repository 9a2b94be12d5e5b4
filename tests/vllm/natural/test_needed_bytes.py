"""The slabs that demands of several pools need together, against a plain count."""

from math import ceil
from typing import Any

from examples import examples
from hybrid_blocks.model import Layer, Model
from hybrid_blocks.model.layer import FullAttention, LatentAttention, Mamba2, SlidingWindow
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.vllm.natural.groups import arena_plan, layout_of, needed_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

from natural.engine import Engine, installed

caches = st.sampled_from(
    [
        FullAttention(kv_heads=1, head_dim=32),
        SlidingWindow(kv_heads=2, head_dim=32, window=100),
        LatentAttention(latent_dim=64),
        Mamba2(inner_dim=64, groups=1, heads=4, head_dim=16, state_dim=32, conv_kernel=4),
    ]
)
models = st.lists(caches, min_size=1, max_size=9).filter(
    lambda kept: any(not isinstance(cache, Mamba2) for cache in kept)
)


@settings(max_examples=examples(30))
@given(models, st.integers(16, 5000), st.sampled_from((16, 512)), st.integers(0, 3))
def test_one_request_needs_the_slabs_of_its_blocks_counted_one_by_one(
    kept: list[object], length: int, batch: int, drafts: int
) -> None:
    layers = tuple(Layer(depth, cache) for depth, cache in enumerate(kept))  # type: ignore[arg-type]
    model = Model(name="made", model_type="made", num_layers=len(layers), layers=layers)
    steps: Any = {"max_num_batched_tokens": batch, "num_speculative_tokens": drafts}
    deployment = Deployment(max_model_len=length, **steps)
    with installed():
        engine = Engine(model, deployment, 2**31)
    config: Any = engine.kv_cache_config
    slab_bytes = layout_of(config.kv_cache_groups).slab_bytes
    needed = needed_bytes(engine.config, config.kv_cache_groups)
    # Chunks begin at multiples of a batch at least, and anywhere at most.
    whole_batches, anywhere = range(0, length, batch), range(length)
    assert needed >= _slabs(config, length, batch, drafts, whole_batches) * slab_bytes
    assert needed <= _slabs(config, length, batch, drafts, anywhere) * slab_bytes
    plan = arena_plan(engine.config, config)
    assert plan.slabs(1, length) * slab_bytes == needed


def _slabs(config: Any, length: int, batch: int, drafts: int, starts: range) -> int:
    blocks: dict[int, int] = {}
    for pool, group in zip(config.pools, config.kv_cache_groups, strict=True):
        size, name = group.kv_cache_spec.block_size, group.layer_names[0]
        if "state" in name:
            held = 1 + drafts
        elif "sliding" in name:
            held = max(
                ceil(min(it + batch, length) / size) - max(0, it - 99) // size for it in starts
            )
        else:
            held = ceil(length / size)
        blocks[pool] = blocks.get(pool, 0) + held
    return sum(ceil(count / config.blocks_per_slab[pool]) for pool, count in blocks.items())


@settings(max_examples=examples(15))
@given(models, st.integers(2, 400), st.integers(16, 5000))
def test_one_slab_less_does_not_start(kept: list[object], spare: int, length: int) -> None:
    """vLLM's own check, on this configuration's bytes: beside the null slab, one request fits."""
    layers = tuple(Layer(depth, cache) for depth, cache in enumerate(kept))  # type: ignore[arg-type]
    model = Model(name="made", model_type="made", num_layers=len(layers), layers=layers)
    deployment = Deployment(max_model_len=length)
    with installed():
        engine = Engine(model, deployment, 2**31)
        layout = layout_of(engine.groups)
        enough = needed_bytes(engine.config, engine.groups) + layout.slab_bytes
        Engine(model, deployment, enough + spare)
        try:
            Engine(model, deployment, enough - 1)
        except ValueError as error:
            assert "max seq len" in str(error)  # noqa: PT017 - the message is vLLM's
        else:
            raise AssertionError("vLLM started with less than one request needs")
