"""Whole traces: made ones, and the public ones where they are at hand."""

from pathlib import Path

import numpy as np
import pytest
from hybrid_blocks.tools.trace import Trace, measure_sharing, read_trace
from made_traces import MAKERS, Facts
from public_data import DATA

RECORDED = {
    "mooncake": ("mooncake_fast25_conversation_trace.jsonl.gz", Facts(12_031, 12_031, 6758, 500)),
    "coding-agent": ("claude_code_agentic_dev.jsonl.gz", Facts(20_480 + 4_578 + 393, 355, 0, 0)),
    "sharegpt": (
        "llmservingsim_sharegpt_qwen3_300.jsonl.gz",
        Facts(300, 300, 0, 0, leading=(5847, 2857, 220, 16)),
    ),
    "azure": ("azure_llm_2023_conv.csv.gz", Facts(19_366, 19_366, 374, 44)),
}
SOURCES = ["made", *(["recorded"] if (DATA / "traces").is_dir() else [])]


def trace_of(name: str, source: str, folder: Path) -> tuple[Trace, Facts]:
    if source == "recorded":
        file, facts = RECORDED[name]
        return read_trace(DATA / "traces" / file), facts
    path = folder / "trace.gz"
    facts = MAKERS[name](path)
    return read_trace(path), facts


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", RECORDED)
def test_all_requests_of_a_trace_are_read(tmp_path: Path, name: str, source: str) -> None:
    trace, facts = trace_of(name, source, tmp_path)
    assert len(trace) == facts.requests
    assert (trace.follows < np.arange(len(trace))).all()
    assert (trace.follows == -1).sum() == facts.first
    if facts.prompt_tokens:
        assert trace.prompt_tokens[0] == facts.prompt_tokens
        assert trace.output_tokens[0] == facts.output_tokens
    assert tuple(trace.token_ids(0)[: len(facts.leading)].tolist()) == facts.leading


@pytest.mark.parametrize("source", SOURCES)
def test_mooncake_shares_as_many_blocks_as_its_ids_say(tmp_path: Path, source: str) -> None:
    trace, facts = trace_of("mooncake", source, tmp_path)
    sharing = measure_sharing(trace, 512)
    assert sharing is not None
    num_blocks = (-(-trace.prompt_tokens // 512)).sum()
    if facts.num_ids:
        assert (sharing.hit_tokens // 512, num_blocks) == (facts.hit_ids, facts.num_ids)
        assert 0.2 < facts.hit_ids / facts.num_ids < 0.9
    else:
        assert trace.arrival.max() == pytest.approx(3537, abs=3)
        assert sharing.hit_tokens / 512 / num_blocks == pytest.approx(0.366, abs=0.001)
