"""Level ``natural`` finds no less than vLLM's default for models with windows, under pressure."""

import _served_hits
import pytest
from _served_model import Case, Side
from _served_rows import deployment
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.trace import Trace, generate_workload
from hybrid_blocks.tools.trace.builder import TraceBuilder

GIB = 2**30


def found(side: Side, model: str, gib: float, at_once: int, trace: Trace) -> float:
    longest = int(trace.total_tokens.max()) + 1
    case = Case(load_model(model), int(gib * GIB), deployment(longest), at_once)
    return float(_served_hits.measure(side, case, trace)["hit_rate"])


@pytest.mark.parametrize(
    ("model", "gib", "seats"), [("gpt-oss-20b", 1.5, 8), ("Gemma-3-27B", 10.0, 5)]
)
def test_seats_in_turn_find_no_less_than_in_stock_vllm(model: str, gib: float, seats: int) -> None:
    trace = generate_workload("seats", num_requests=6 * seats, num_seats=seats)
    stock, natural = (found(side, model, gib, 2, trace) for side in (Side.STOCK, Side.NATURAL))
    assert natural >= stock > 0.75


def test_a_shared_prefix_is_found_under_every_tail() -> None:
    builder = TraceBuilder("tails")
    prefix = builder.fresh(2_000)
    for _ in range(40):
        spans = [prefix, builder.fresh(800), builder.fresh(1)]
        builder.add(spans, arrival=0.0, prompt_tokens=2_800, output_tokens=1)
    trace = builder.build()
    stock, natural = (found(it, "gpt-oss-20b", 0.6, 2, trace) for it in (Side.STOCK, Side.NATURAL))
    assert natural >= stock
    assert natural > 0.6
