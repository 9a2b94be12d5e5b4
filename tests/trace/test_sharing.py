import numpy as np
from hybrid_blocks.tools.trace import Sharing, Trace, measure_sharing
from hybrid_blocks.tools.trace.builder import TraceBuilder
from hypothesis import given
from hypothesis import strategies as st
from loads import small

Requests = list[tuple[list[tuple[int, int]], int]]

spans = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 9)), min_size=1, max_size=6)
requests = st.lists(st.tuples(spans, st.integers(1, 5)), min_size=1, max_size=12)


def build(requests: Requests) -> Trace:
    builder = TraceBuilder("made up")
    for request_spans, most in requests:
        total = sum(count for _, count in request_spans)
        output = min(most, total - 1) or 1
        prompt, own = max(total - output, 1), [*request_spans, (100, 1)]
        builder.add(own, arrival=0.0, prompt_tokens=prompt, output_tokens=output)
    return builder.build()


def naive_sharing(trace: Trace, block_size: int) -> Sharing:
    seen: set[tuple[int, ...]] = set()
    points: set[tuple[int, ...]] = set()
    hits = 0
    for request in range(len(trace)):
        tokens = trace.token_ids(request).tolist()
        prefixes = [tuple(tokens[:end]) for end in range(block_size, len(tokens), block_size)]
        most = (int(trace.prompt_tokens[request]) - 1) // block_size
        found = sum(prefix in seen for prefix in prefixes[:most])
        points.update(prefixes[end - 1] for end in (found, most) if end)
        hits += found
        seen.update(prefixes)
    return Sharing(len(seen), hits * block_size, len(points))


@given(requests, st.integers(1, 7))
def test_sharing_equals_a_set_of_all_prefixes(requests: Requests, block_size: int) -> None:
    trace = build(requests)
    assert measure_sharing(trace, block_size) == naive_sharing(trace, block_size)


@given(requests)
def test_token_ids_are_the_spans_written_out(requests: Requests) -> None:
    trace = build(requests)
    for request, (request_spans, _) in enumerate(requests):
        expected = [it for first, count in request_spans for it in range(first, first + count)]
        size = len(trace.token_ids(request))
        np.testing.assert_array_equal(trace.token_ids(request), [*expected, 100][:size])


def test_sharing_of_a_generated_workload_equals_a_set_of_all_prefixes() -> None:
    trace = small(3, 40)
    assert measure_sharing(trace, 16) == naive_sharing(trace, 16)
