"""The public traces themselves, where they are at hand."""

import numpy as np
import pytest
from hybrid_blocks.trace import measure_sharing, read_trace
from public_data import DATA, MOONCAKE

pytestmark = pytest.mark.skipif(
    not (DATA / "traces").is_dir(), reason="the public traces are not here"
)


def test_mooncake_has_the_published_number_of_requests_and_block_hits() -> None:
    trace = read_trace(MOONCAKE)
    assert len(trace) == 12_031
    assert trace.arrival.max() == pytest.approx(3537, abs=3)
    sharing = measure_sharing(trace, 512)
    assert sharing is not None
    num_blocks = (-(-trace.prompt_tokens // 512)).sum()
    assert sharing.hit_tokens / 512 / num_blocks == pytest.approx(0.366, abs=0.001)


def test_coding_agent_conversations_are_read_whole_with_their_subagents() -> None:
    trace = read_trace(DATA / "traces" / "claude_code_agentic_dev.jsonl.gz")
    assert len(trace) == 20_480 + 4_578 + 393
    assert (trace.follows < np.arange(len(trace))).all()
    assert (trace.follows == -1).sum() == 355


def test_prompts_of_llmservingsim_keep_their_recorded_tokens() -> None:
    trace = read_trace(DATA / "traces" / "llmservingsim_sharegpt_qwen3_300.jsonl.gz")
    assert len(trace) == 300
    assert trace.token_ids(0)[:4].tolist() == [5847, 2857, 220, 16]


def test_azure_has_the_published_number_of_requests() -> None:
    trace = read_trace(DATA / "traces" / "azure_llm_2023_conv.csv.gz")
    assert len(trace) == 19_366
    assert trace.prompt_tokens[0] == 374
    assert trace.output_tokens[0] == 44
