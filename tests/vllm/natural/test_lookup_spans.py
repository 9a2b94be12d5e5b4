"""A traced request has a span that tells what its look-up found, and what ended it."""

from typing import Any

import pytest
from hybrid_blocks.vllm.natural import lookup_spans
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from .test_manager import HybridEngine, engine_of

pytestmark = pytest.mark.usefixtures("natural_level")

TRACE = "0af7651916cd43dd8448eb211c80319c"
HEADERS = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
PROMPT = list(range(200))


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Spans that an engine with ``--otlp-traces-endpoint`` exports."""
    made = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    monkeypatch.setenv(lookup_spans.ENDPOINT, "http://localhost:4317")
    return made


def serve(engine: HybridEngine, headers: dict[str, str] | None, prompt: list[int] = PROMPT) -> int:
    """Serve a prompt once, and return how many of its tokens were found."""
    request = engine.add(prompt, 4)
    request.trace_headers = headers
    engine.finish()
    return engine.hits[request.request_id]


def test_each_traced_admission_has_a_span(exporter: InMemorySpanExporter) -> None:
    engine = engine_of(20)
    found = [serve(engine, headers) for headers in (HEADERS, None, HEADERS)]
    spans: Any = exporter.get_finished_spans()
    assert found[0] == 0 < found[2]
    assert [span.name for span in spans] == [lookup_spans.NAME] * 2
    assert [span.attributes for span in spans] == [
        {
            "hybrid_blocks.found_tokens": tokens,
            "hybrid_blocks.hit_ended_by": ended_by,
            "hybrid_blocks.attention_tokens": tokens,
            "hybrid_blocks.checkpoint_tokens": tokens,
        }
        for tokens, ended_by in ((0, "unseen"), (found[2], "complete"))
    ]
    assert {f"{span.context.trace_id:032x}" for span in spans} == {TRACE}
    assert {f"{span.parent.span_id:016x}" for span in spans} == {"b7ad6b7169203331"}


def test_the_span_says_how_far_attention_went_beyond(exporter: InMemorySpanExporter) -> None:
    engine = engine_of(20)
    serve(engine, None)
    leaves = 5 * 16
    assert serve(engine, HEADERS, [*PROMPT[:leaves], *range(900, 1000)]) == 0
    (span,) = exporter.get_finished_spans()
    assert span.attributes == {
        "hybrid_blocks.found_tokens": 0,
        "hybrid_blocks.hit_ended_by": "no_checkpoint",
        "hybrid_blocks.attention_tokens": leaves,
        "hybrid_blocks.checkpoint_tokens": 0,
    }


def test_an_engine_without_traces_calls_the_core_itself() -> None:
    assert "allocate_slots" not in vars(engine_of(20).manager)
