"""A cache is planned from a model, from blocks, or as large as a trace needs."""

import pytest
from hybrid_blocks.model import PlanError
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.replay import ReplayError, block_cache, model_cache, read_num_blocks
from hybrid_blocks.tools.trace.builder import TraceBuilder


def test_the_arena_is_the_natural_plan_of_the_memory() -> None:
    cache = model_cache("Granite-4.0-Micro", "1GiB", Deployment())
    (group,) = cache.geometry.groups
    assert group.block_bytes == 16 * 81_920
    assert cache.geometry.usable_slabs == 2**30 // group.block_bytes - 1
    assert cache.num_speculative_tokens == 0
    hybrid = model_cache("Qwen3.5-27B", 24 * 2**30, Deployment(num_speculative_tokens=2))
    assert hybrid.num_speculative_tokens == 2
    assert len(hybrid.geometry.pools) > 1


@pytest.mark.parametrize(
    ("model", "is_inside_beside_drafts"),
    [
        ("Qwen3.5-27B", True),
        ("Kimi-Linear-48B-A3B", True),
        ("Jamba-1.5-Mini", False),
        ("MiniMax-Text-01", False),
        ("Ring-2.5-1T", False),
    ],
)
def test_states_are_left_inside_chunks_where_level_natural_leaves_them(
    model: str, is_inside_beside_drafts: bool
) -> None:
    alone, drafting = (
        model_cache(model, "24GiB", Deployment(num_speculative_tokens=number)) for number in (0, 2)
    )
    assert alone.leaves_states_inside
    assert drafting.leaves_states_inside is is_inside_beside_drafts
    assert (
        not model_cache("Nemotron-H-8B", "24GiB", Deployment()).keeping("int8").leaves_states_inside
    )


def test_memory_without_room_for_a_block_is_refused() -> None:
    with pytest.raises(PlanError, match="hold no slab"):
        model_cache("Granite-4.0-Micro", "1MiB", Deployment())


def test_a_cache_of_blocks_counts_one_byte_a_token() -> None:
    cache = block_cache(9, 16)
    assert cache.geometry.usable_slabs == 9
    assert cache.geometry.live_bytes(33) == 33
    with pytest.raises(ReplayError, match="0 blocks can serve nothing"):
        block_cache(0, 16)


def test_a_number_of_blocks_may_be_unbounded() -> None:
    builder = TraceBuilder("one")
    builder.add([builder.fresh(40)], arrival=0, prompt_tokens=30, output_tokens=10)
    trace = builder.build()
    assert read_num_blocks("77", trace, 16) == 77
    assert read_num_blocks("unbounded", trace, 16) == 3
    for wrong in ("0", "-3", "many"):
        with pytest.raises(ReplayError, match="neither a number of blocks"):
            read_num_blocks(wrong, trace, 16)
