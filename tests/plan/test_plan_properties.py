"""Properties that hold for every model, deployment and memory."""

from arena_filler import serve_all
from examples import examples
from hybrid_blocks.geometry import capacity
from hybrid_blocks.geometry.slab import STRIDE_ALIGNMENT
from hybrid_blocks.model import Layer, Model, PlanError, load_model
from hybrid_blocks.model.layer import (
    ChunkedAttention,
    FullAttention,
    LatentAttention,
    Mamba2,
    ShortConv,
    SlidingWindow,
)
from hybrid_blocks.model.table import entries
from hybrid_blocks.tools.plan import ArenaPlan, Deployment, plan_natural, plan_vllm
from hybrid_blocks.tools.plan.report.figures import natural_budget, vllm_budget
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

heads = st.sampled_from((1, 2, 4, 8))
dims = st.sampled_from((32, 64, 96, 128, 256))
caches = st.one_of(
    st.builds(FullAttention, kv_heads=heads, head_dim=dims),
    st.builds(LatentAttention, latent_dim=st.sampled_from((288, 576))),
    st.builds(SlidingWindow, kv_heads=heads, head_dim=dims, window=st.sampled_from((64, 100, 512))),
    st.builds(ChunkedAttention, kv_heads=heads, head_dim=dims, chunk=st.sampled_from((128, 1000))),
    st.builds(
        Mamba2,
        inner_dim=st.sampled_from((256, 1536)),
        groups=st.sampled_from((1, 2)),
        heads=st.sampled_from((4, 24)),
        head_dim=st.sampled_from((32, 64)),
        state_dim=st.sampled_from((16, 128)),
        conv_kernel=st.just(4),
    ),
    st.builds(ShortConv, width=st.sampled_from((256, 1024)), conv_kernel=st.just(3)),
)
models = st.lists(st.tuples(caches, st.integers(1, 12)), min_size=1, max_size=4).map(
    lambda runs: _model([cache for cache, count in runs for _ in range(count)])
)
deployments = st.builds(
    Deployment,
    max_model_len=st.integers(1, 20_000),
    max_num_batched_tokens=st.sampled_from((16, 512, 8192)),
    num_speculative_tokens=st.integers(0, 4),
    mamba_cache_mode=st.sampled_from(("align", "none")),
    kv_cache_dtype=st.sampled_from(("auto", "fp8")),
)
memories = st.integers(2**26, 2**34)
lengths = st.integers(1, 20_000)
without_deadline = settings(
    max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def _model(kept: list[object]) -> Model:
    layers = tuple(Layer(depth, cache) for depth, cache in enumerate(kept))  # type: ignore[arg-type]
    return Model(name="drawn", model_type="drawn", num_layers=len(layers), layers=layers)


def _natural(model: Model, memory: int, deployment: Deployment) -> ArenaPlan:
    try:
        return plan_natural(model, memory, deployment)
    except PlanError:
        assume(False)
        raise


@without_deadline
@given(models, deployments, memories)
def test_strides_fill_the_slab_and_hold_the_block(
    model: Model, deployment: Deployment, memory: int
) -> None:
    geometry = _natural(model, memory, deployment)
    depths = sorted(layer.depth for layer in model.layers)
    assert sorted(depth for group in geometry.groups for depth in group.layers) == depths
    for group in geometry.groups:
        assert group.block_stride * group.blocks_per_slab == geometry.slab_bytes
        assert group.block_stride % STRIDE_ALIGNMENT == 0
        assert sum(group.page_bytes) == group.block_bytes <= group.block_stride
        assert geometry.pools[group.pool] == group.blocks_per_slab
        assert group.block_tokens % geometry.hash_block_size == 0


@without_deadline
@given(models, deployments, memories, lengths)
def test_needed_bytes_are_reserved_and_reserved_bytes_are_there(
    model: Model, deployment: Deployment, memory: int, length: int
) -> None:
    geometry = _natural(model, memory, deployment)
    budget = natural_budget(geometry, length)
    assert budget.total == memory
    assert min(budget.parts.values()) >= 0
    assert budget.live <= geometry.arena_bytes <= memory
    try:
        plan = plan_vllm(model, memory, deployment)
    except PlanError:
        return
    theirs = vllm_budget(plan, length)
    assert theirs.total == memory
    assert min(theirs.parts.values()) >= 0


@without_deadline
@given(models, deployments, memories, st.integers(0, 2**30), lengths)
def test_more_memory_never_holds_less(
    model: Model, deployment: Deployment, memory: int, more: int, length: int
) -> None:
    small = _natural(model, memory, deployment)
    large = _natural(model, memory + more, deployment)
    assert capacity.concurrency(small, length) <= capacity.concurrency(large, length)
    assert capacity.requests(small, length) <= capacity.requests(large, length)
    assert capacity.longest(small, 10**6) <= capacity.longest(large, 10**6)
    try:
        ours = plan_vllm(model, memory, deployment)
    except PlanError:
        return
    theirs = plan_vllm(model, memory + more, deployment)
    assert ours.tokens <= theirs.tokens
    assert ours.max_concurrency <= theirs.max_concurrency


@without_deadline
@given(models, deployments, memories, lengths, lengths)
def test_longer_requests_never_fit_more_often(
    model: Model, deployment: Deployment, memory: int, first: int, second: int
) -> None:
    short, long = sorted((first, second))
    geometry = _natural(model, memory, deployment)
    assert capacity.concurrency(geometry, short) >= capacity.concurrency(geometry, long)
    try:
        plan = plan_vllm(model, memory, deployment)
    except PlanError:
        return
    assert plan.concurrency(short) >= plan.concurrency(long)


@without_deadline
@given(models, deployments, st.integers(2**26, 2**29), st.integers(500, 20_000))
def test_an_arena_holds_the_planned_requests_and_not_one_more(
    model: Model, deployment: Deployment, memory: int, length: int
) -> None:
    geometry = _natural(model, memory, deployment)
    planned = capacity.requests(geometry, length)
    assume(planned <= 3000)
    assert serve_all(geometry, length) == planned
    assert int(capacity.concurrency(geometry, length)) == planned


def test_every_built_in_model_is_filled_to_its_planned_concurrency() -> None:
    served = 0
    for name in entries():
        for speculative in (0, 2):
            options = Deployment(max_model_len=16_384, num_speculative_tokens=speculative)
            geometry = plan_natural(load_model(name), 24 * 2**30, options)
            assert serve_all(geometry, 16_384) == capacity.requests(geometry, 16_384)
            served += 1
    assert served >= 100


def _groups_on(model: Model, num_ranks: int) -> list[tuple[int, ...]]:
    options = Deployment(tp=num_ranks, max_model_len=16_384)
    return [group.layers for group in plan_natural(model, 2**40, options).groups]


def test_chunks_of_another_tensor_parallel_size_fit_where_the_groups_are_the_same() -> None:
    """Offload names a chunk by its group; these models split their states by a rank's bytes."""
    loaded = [load_model(name) for name in entries()]
    split = {it.name for it in loaded if _groups_on(it, 1) != _groups_on(it, 2)}
    assert split == {
        *("Qwen3.5-27B", "Qwen3.6-27B", "Qwen3.8-27B", "Qwen3.5-9B", "Qwen3.5-4B"),
        *("Falcon-H1-7B", "Granite-4.0-H-Micro", "RecurrentGemma-9B"),
        *("PLaMo-2-1B", "Olmo-Hybrid-7B"),
    }


@without_deadline
@given(models, deployments, memories)
def test_the_longest_request_fits_and_a_longer_one_does_not(
    model: Model, deployment: Deployment, memory: int
) -> None:
    geometry = _natural(model, memory, deployment)
    longest = capacity.longest(geometry, 10**9)
    assert longest == 0 or capacity.requests(geometry, longest) >= 1
    assert longest == 10**9 or capacity.requests(geometry, longest + 1) == 0


def test_chunks_that_begin_inside_vllms_blocks_are_not_planned_one_block_short() -> None:
    full = FullAttention(kv_heads=4, head_dim=96)
    chunked = ChunkedAttention(kv_heads=2, head_dim=64, chunk=128)
    model = _model([full, full, chunked, chunked, chunked])
    plan = plan_vllm(model, 299_728_896, Deployment(max_model_len=1, max_num_batched_tokens=16))
    assert min(vllm_budget(plan, 769).parts.values()) >= 0
