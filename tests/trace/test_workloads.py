"""Each kind of generated workload is what its parameters say."""

import numpy as np
import pytest
from hybrid_blocks.tools.trace import (
    WORKLOADS,
    Trace,
    TraceError,
    generate_workload,
    measure_sharing,
    shared_prefixes,
)
from hybrid_blocks.tools.trace.workloads import KINDS, Agents, BranchingTools, Chats, Documents
from loads import LOADS, Templates, generate, mix

ALL = (*KINDS, *LOADS)


def made(name: str, num_requests: int = 600) -> Trace:
    return generate(name, 1, num_requests)


@pytest.mark.parametrize("name", ALL)
def test_equal_seeds_make_equal_workloads_of_the_length_asked_for(name: str) -> None:
    first, again = made(name, 150), made(name, 150)
    other = generate(name, 2, 150)
    assert len(first) == len(again) == len(other) == 150
    for column in ("arrival", "follows", "session", "prompt_tokens", "span_first", "span_count"):
        np.testing.assert_array_equal(getattr(first, column), getattr(again, column))
    assert not np.array_equal(first.prompt_tokens, other.prompt_tokens)


@pytest.mark.parametrize("name", ALL)
def test_arrivals_are_in_order_and_leaders_come_first(name: str) -> None:
    trace = made(name)
    assert (np.diff(trace.arrival[trace.follows < 0]) >= 0).all()
    assert (trace.follows < np.arange(len(trace))).all()


def departures(trace: Trace) -> list[int]:
    """Tokens between where a prompt leaves the one before it in its session, and that one's end.

    The one before it is the one that it follows, if it follows any.
    """
    last: dict[int, int] = {}
    found = []
    for request, session in enumerate(trace.session.tolist()):
        leader = int(trace.follows[request])
        earlier = leader if leader >= 0 else last.get(session, -1)
        if earlier >= 0:
            before, now = trace.token_ids(earlier), trace.token_ids(request)
            both = min(len(before), len(now))
            shared = np.argmin(np.append(before[:both] == now[:both], False))
            found.append(int(trace.prompt_tokens[earlier]) - int(shared))
        last[session] = request
    return found


def test_questions_leave_a_document_20_to_1300_tokens_before_the_prompts_end() -> None:
    kind = Documents()
    trace = made("documents")
    own = np.array(departures(trace))
    anew = own[own > 0]
    assert ((kind.question_tokens[0] <= anew) & (anew <= 2 * kind.question_tokens[1] + 1500)).all()
    assert (anew <= kind.question_tokens[1]).mean() > 0.7
    assert np.percentile(anew, 10) < 60
    assert np.percentile(anew, 90) > 500
    assert 0.02 < (own <= 0).mean() < 0.3, "follow-ups repeat the answer"


def test_many_documents_are_asked_once_and_preambles_are_shared() -> None:
    trace = made("documents", 1500)
    _, questions = np.unique(trace.session, return_counts=True)
    assert 0.35 < (questions == 1).mean() < 0.65
    assert questions.max() >= 5
    preambles = trace.span_first[trace.span_start[:-1]]
    assert len(np.unique(preambles)) == Documents().prefixes.number
    assert 12_000 < np.median(trace.prompt_tokens) < 16_000


def test_agents_repeat_nearly_everything_and_are_compacted() -> None:
    trace = made("agents", 1500)
    sharing = measure_sharing(trace, 16)
    assert sharing is not None
    assert sharing.hit_tokens / trace.prompt_tokens.sum() > 0.9
    most = Agents().most_tokens + Agents().most_result_tokens + 5_000
    assert trace.prompt_tokens.max() < most
    leaders = trace.follows >= 0
    shrunk = trace.prompt_tokens[leaders] < 0.5 * trace.prompt_tokens[trace.follows[leaders]]
    assert 0 < shrunk.sum() < 0.1 * len(trace)


def test_tools_branch_where_they_should() -> None:
    kind = BranchingTools()
    trace = made("tools")
    _, calls = np.unique(trace.follows[trace.follows >= 0], return_counts=True)
    assert calls.max() == kind.most_calls
    own = np.array(departures(trace))
    before_end = own[own > 0]
    low, high = kind.ask_tokens
    assert ((low <= before_end) & (before_end <= high)).all()
    assert 0.3 < (own < 0).mean() < 0.7, "half of them go on from the answer"


def test_single_prompts_share_nothing_but_their_preambles() -> None:
    trace = made("single")
    assert len(np.unique(trace.session)) == len(trace)
    seen = shared_prefixes(trace, 1).seen
    preamble = trace.span_count[trace.span_start[:-1]]
    assert (seen <= preamble).all()


def test_prompts_of_a_template_leave_it_near_one_of_a_few_lengths() -> None:
    kind = Templates()
    trace = made("templates")
    first = trace.span_first[trace.span_start[:-1]]
    length = trace.span_count[trace.span_start[:-1]]
    assert len(np.unique(first)) == kind.prefixes.number
    for template in np.unique(first):
        own = length[first == template]
        ends = [cut * own.max() for cut in kind.cuts]
        near = [(it * (1 - 2 * kind.spread) <= own) & (own <= it * 1.01) for it in ends]
        assert np.logical_or.reduce(near).all()
        assert len(np.unique(own)) > len(own) / 3, "each prompt draws its own length"
    sharing = measure_sharing(trace, 16)
    assert sharing is not None
    assert sharing.hit_tokens / trace.prompt_tokens.sum() > 0.8


def test_conversations_go_on_past_words_that_the_history_leaves_out() -> None:
    own = departures(made("conversations"))
    assert set(own) == {Chats().template_tokens}


def test_a_changing_workload_is_one_kind_and_then_another() -> None:
    trace = mix((Documents(), Chats()), 1, 400, "change")
    assert np.median(trace.prompt_tokens[:200]) > 3 * np.median(trace.prompt_tokens[200:])
    assert not np.isin(trace.session[200:], trace.session[:200]).any()
    late = trace.arrival[200:][trace.follows[200:] < 0]
    assert late.min() > 0.5 * trace.arrival[:200].max()


def test_seats_take_turns_and_each_repeats_its_last_prompt() -> None:
    trace = generate_workload("seats", num_requests=21, num_seats=3)
    turn, seat = np.divmod(np.arange(21), 3)
    np.testing.assert_array_equal(trace.prompt_tokens, 4096 + 512 * (turn % 6))
    np.testing.assert_array_equal(trace.follows, np.where(turn > 0, np.arange(21) - 3, -1))
    assert not trace.arrival.any()
    seen = shared_prefixes(trace, 1).seen
    before = np.where(turn % 6 == 0, 0, trace.prompt_tokens - 512)
    np.testing.assert_array_equal(seen, before)
    # Someone else takes a seat after six turns.
    np.testing.assert_array_equal(trace.session, seat + 3 * (turn // 6))


def test_a_workload_needs_a_seat() -> None:
    with pytest.raises(TraceError, match="num_seats is 0; it must be at least 1"):
        generate_workload("seats", num_seats=0)


def test_workloads_that_are_not_known_are_refused() -> None:
    with pytest.raises(
        TraceError, match="'poems' is no generated workload; known are conversations"
    ):
        generate_workload("poems")
    with pytest.raises(TraceError, match="num_requests is 0"):
        generate_workload(WORKLOADS[0], num_requests=0)
