import numpy as np
import pytest
from hybrid_blocks.tools.trace import Trace, TraceError, generate_workload, shared_prefixes
from hybrid_blocks.tools.trace.builder import TraceBuilder
from hybrid_blocks.tools.trace.sharing import PAUSED_SECONDS, Signal, session_signals


def turns(*, named: bool) -> Trace:
    """Two turns of one session with a short pause, a third after a long one, and a stranger."""
    builder = TraceBuilder("turns")
    session = builder.new_session() if named else -1
    stranger = builder.new_session() if named else -1
    history, follows = [builder.fresh(40)], -1
    for pause in (0.0, PAUSED_SECONDS, PAUSED_SECONDS + 1):
        history = [*history, builder.fresh(20)]
        sizes = {"prompt_tokens": sum(count for _, count in history) - 4, "output_tokens": 4}
        follows = builder.add(history, arrival=pause, follows=follows, session=session, **sizes)
    own = [history[0], builder.fresh(24)]
    builder.add(own, arrival=5.0, prompt_tokens=60, output_tokens=4, session=stranger)
    return builder.build()


def test_signals_of_named_sessions_are_those_worked_out_by_hand() -> None:
    trace = turns(named=True)
    signals = session_signals(trace, shared_prefixes(trace, 8))
    assert signals.tolist() == [Signal.PAUSED, Signal.GOES_ON, Signal.DONE, Signal.DONE]


def test_without_sessions_a_prompt_goes_on_if_more_of_it_comes_again_than_had_come() -> None:
    trace = turns(named=False)
    signals = session_signals(trace, shared_prefixes(trace, 8))
    assert signals.tolist() == [Signal.GOES_ON, Signal.GOES_ON, Signal.DONE, Signal.DONE]


@pytest.mark.parametrize("accuracy", [0.0, 0.8, 1.0])
def test_signals_are_right_as_often_as_told(accuracy: float) -> None:
    trace = generate_workload("conversations", num_requests=2000)
    prefixes = shared_prefixes(trace, 16)
    truth = session_signals(trace, prefixes)
    found = session_signals(trace, prefixes, accuracy=accuracy, seed=3)
    assert (found == truth).mean() == pytest.approx(accuracy, abs=0.03)
    assert ((found == Signal.DONE) != (truth == Signal.DONE))[found != truth].all()
    assert set(truth.tolist()) == set(Signal)


def test_an_accuracy_that_cannot_be_is_refused() -> None:
    trace = turns(named=True)
    with pytest.raises(TraceError, match=r"accuracy of 1\.5"):
        session_signals(trace, shared_prefixes(trace, 8), accuracy=1.5)


def test_every_request_of_a_generated_workload_belongs_to_a_session() -> None:
    for name in ("agents", "documents", "tools"):
        trace = generate_workload(name, num_requests=200)
        assert (trace.session >= 0).all()
        followers = np.flatnonzero(trace.follows >= 0)
        strangers = trace.session[followers] != trace.session[trace.follows[followers]]
        # A subagent follows its caller and has a session of its own.
        assert strangers.sum() <= (0.1 * len(followers) if name == "agents" else 0)
