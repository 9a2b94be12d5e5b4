"""Hits of replays are those that recorded traces allow."""

from pathlib import Path

import pytest
from hybrid_blocks.tools.replay import (
    EngineConfig,
    ManagerName,
    Result,
    block_cache,
    read_num_blocks,
    replay,
)
from hybrid_blocks.tools.trace import Trace, measure_sharing, read_trace
from hybrid_blocks.tools.trace.builder import TraceBuilder
from made_traces import mooncake
from public_data import MOONCAKE


def run(trace: Trace, config: EngineConfig, block_size: int = 16) -> Result:
    result, _ = replay(
        trace,
        manager_name=ManagerName.RUST,
        cache=block_cache(read_num_blocks("unbounded", trace, block_size), block_size),
        config=config,
        sharing=measure_sharing(trace, block_size),
    )
    return result


def four_conversations() -> Trace:
    """Two system prompts, each opening two conversations of two turns.

    With blocks of 16: system prompts of 40 tokens hold 2 full blocks. A first turn of 40 + 24
    tokens and 8 of output leaves (64 + 8 - 1) // 16 = 4 full blocks. The second turn resends these
    72 tokens and 20 more, 92 in all; 64 can be hit.
    """
    builder = TraceBuilder("four conversations")
    systems = [builder.fresh(40), builder.fresh(40)]
    for system in (systems[0], systems[1], systems[0], systems[1]):
        first = [system, builder.fresh(24), builder.fresh(8)]
        leader = builder.add(first, arrival=float(len(builder)), prompt_tokens=64, output_tokens=8)
        second = [*first, builder.fresh(20), builder.fresh(8)]
        builder.add(second, arrival=0.1, prompt_tokens=92, output_tokens=8, follows=leader)
    return builder.build()


def test_hits_of_four_conversations_are_those_worked_out_by_hand() -> None:
    result = run(four_conversations(), EngineConfig(max_num_seqs=1))
    assert result.hit_tokens == 2 * 32 + 4 * 64
    assert result.prompt_tokens == 4 * (64 + 92)
    assert result.hit_rate == pytest.approx(320 / 624)
    assert result.block_hit_rate == pytest.approx(20 / (4 * (4 + 6)))
    assert result.sequential_hit_rate == pytest.approx(result.hit_rate)


def test_a_prefix_that_is_computed_in_the_same_step_is_hit_as_in_vllm() -> None:
    builder = TraceBuilder("twins")
    shared = builder.fresh(64)
    for _ in range(2):
        builder.add([shared, builder.fresh(20)], arrival=0, prompt_tokens=80, output_tokens=4)
    trace = builder.build()
    assert run(trace, EngineConfig(max_num_seqs=1)).hit_tokens == 64
    together = run(trace, EngineConfig(max_num_seqs=2))
    assert together.hit_tokens == 64
    assert together.sequential_hit_rate == pytest.approx(64 / 160)


def test_a_whole_prompt_in_the_cache_is_hit_but_for_its_last_block() -> None:
    builder = TraceBuilder("again")
    prompt = builder.fresh(64)
    for index in range(2):
        builder.add([prompt, builder.fresh(4)], arrival=index, prompt_tokens=64, output_tokens=4)
    assert run(builder.build(), EngineConfig()).hit_tokens == 48


def one_at_a_time_and_together(trace: Trace) -> Result:
    alone = run(trace, EngineConfig(max_num_seqs=1), block_size=512)
    assert alone.requests == len(trace)
    together = run(trace, EngineConfig(max_num_seqs=256), block_size=512)
    assert together.hit_rate <= alone.hit_rate
    assert together.hit_rate == pytest.approx(alone.hit_rate, abs=0.01)
    return alone


def test_a_trace_one_at_a_time_hits_as_many_blocks_as_its_ids_share(tmp_path: Path) -> None:
    facts = mooncake(tmp_path / "trace")
    trace = read_trace(tmp_path / "trace")
    alone = one_at_a_time_and_together(trace)
    assert alone.block_hit_rate == pytest.approx(facts.hit_ids / facts.num_ids)
    assert alone.hit_tokens == 512 * facts.hit_ids


if MOONCAKE.is_file():

    @pytest.mark.wheel
    def test_mooncake_one_at_a_time_hits_the_published_share_of_blocks() -> None:
        alone = one_at_a_time_and_together(read_trace(MOONCAKE))
        assert alone.block_hit_rate == pytest.approx(0.366, abs=0.01)
        assert alone.hit_rate == pytest.approx(0.366, abs=0.01)
        assert alone.requests == 12_031
