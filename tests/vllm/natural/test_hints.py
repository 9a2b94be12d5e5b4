"""Hints of a request's session, read by vLLM's scheduler at level ``natural``."""

from types import SimpleNamespace
from typing import Any

import pytest
from hybrid_blocks.vllm.natural.hints import ACTION, ARGUMENT, client_hints
from vllm.v1.kv_hints import KvHintAction, KvHintsEnvelope
from vllm.v1.request import Request

from .test_manager import HybridEngine, engine_of

pytestmark = pytest.mark.usefixtures("natural_level")


def hints(hint: Any, *, kind: str = ACTION, version: str = "1") -> KvHintsEnvelope:
    action = KvHintAction("0", kind, version, {"hint": hint})
    other = KvHintAction("1", "another.component", "7", {"hint": "nonsense"})
    return KvHintsEnvelope("1", "message", [action, other])


def request(
    engine: HybridEngine,
    prompt: list[int],
    session: str | None = None,
    hint: str | None = None,
    *,
    argument: str | None = None,
) -> Request:
    """Add a request of a session, with a hint."""
    extra = None if argument is None else {ARGUMENT: argument}
    said = None if hint is None else hints(hint)
    return engine.add(prompt, 2, sampling={"extra_args": extra}, session_id=session, kv_hints=said)


def prompt_of(number: int, length: int = 320) -> list[int]:
    return [10_000 * number + at for at in range(length)]


def serve(engine: HybridEngine, number: int, *said: Any, **options: Any) -> int:
    """Serve a turn; return how many of its tokens are found."""
    added = request(engine, prompt_of(number), *said, **options)
    engine.finish()
    return engine.hits[added.request_id]


def first_lost(engine: HybridEngine, numbers: list[int]) -> int:
    """Return whose prompt is not found any more first, as others take the memory."""
    for other in range(100, 160):
        for number in numbers:
            probe = request(engine, prompt_of(number))
            _, found, _ = engine.manager.get_computed_blocks(probe)
            engine.abort(probe)
            if not found:
                return number
        serve(engine, other)
    raise AssertionError("nothing was lost")


def filled() -> HybridEngine:
    # A state every 160 tokens, whatever was learned of who comes back.
    engine = engine_of(100, interval=160)
    for number in range(20, 38):
        serve(engine, number)
    return engine


def test_without_a_hint_what_is_older_goes_first() -> None:
    engine = filled()
    serve(engine, 1, "first")
    serve(engine, 2, "second")
    assert first_lost(engine, [1, 2]) == 1


@pytest.mark.parametrize("hint", ["done", "compacted"])
def test_a_session_that_is_over_goes_first(hint: str) -> None:
    engine = filled()
    serve(engine, 1, "first")
    serve(engine, 2, "second", hint)
    assert first_lost(engine, [1, 2]) == 2


def test_a_client_over_http_says_it_among_its_further_arguments() -> None:
    engine = filled()
    serve(engine, 1, "first")
    serve(engine, 2, argument="done")
    assert first_lost(engine, [1, 2]) == 2


@pytest.mark.parametrize("hint", ["going_on", "paused"])
def test_a_session_that_goes_on_stays_longer(hint: str) -> None:
    engine = filled()
    serve(engine, 1, "first", hint)
    serve(engine, 2, "second")
    assert first_lost(engine, [1, 2]) == 2


def test_a_request_that_is_aborted_while_it_waits_still_says_something_of_its_session() -> None:
    engine = filled()
    serve(engine, 1, "first")
    serve(engine, 2, "second")
    word = request(engine, [1, 2, 3], "second", "done")
    engine.abort(word)
    assert first_lost(engine, [1, 2]) == 2


def test_a_preempted_request_is_not_over() -> None:
    engine = filled()
    added = request(engine, prompt_of(1), "first", "done")
    while added.num_computed_tokens < added.num_prompt_tokens:
        engine.step()
    engine.scheduler.running.remove(added)
    engine.scheduler._preempt_request(added, 0.0)
    engine.finish()
    assert engine.hits[added.request_id] > 200, "it goes on from what it had computed"


def test_what_cannot_be_understood_is_left_out() -> None:
    params = SimpleNamespace(extra_args=None)
    of = SimpleNamespace(session_id="a", sampling_params=params)
    assert client_hints(of) == ("a", None), "a release without hints"
    for said in (hints("soon"), hints(["done"]), hints("done", version="2")):
        of.kv_hints = said
        assert client_hints(of) == ("a", None)
    of.kv_hints = hints("done", kind="another")
    assert client_hints(of) == ("a", None)
    of.kv_hints = hints("paused")
    assert client_hints(of) == ("a", "paused")
    of.session_id, of.kv_hints = "", None
    params.extra_args = {ARGUMENT: "going_on"}
    assert client_hints(of) == (None, "going_on")
