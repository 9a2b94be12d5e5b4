"""The loop waits out an engine that goes away."""

from collections.abc import Callable

import pytest
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.tools.top.frame import View
from hybrid_blocks.tools.top.read import GoneError, Reading, metrics_url
from hybrid_blocks.tools.top.watch import watch


def read_in_turn(*answers: Reading | GoneError) -> Callable[[], Reading]:
    left = list(answers)

    def read() -> Reading:
        answer = left.pop(0)
        if isinstance(answer, GoneError):
            raise answer
        return answer

    return read


def views(*answers: Reading | GoneError) -> list[View]:
    """Return the views of these answers, until the user quits after the last one."""
    seen: list[View] = []
    watch("url", read_in_turn(*answers), seen.append, lambda: len(seen) > len(answers))
    return seen


def test_each_reading_is_shown_with_the_one_before() -> None:
    first, second = Reading(0, []), Reading(1, [])
    begin, *shown = views(first, second)
    assert begin == View("url", problem="waiting for the engine's first answer")
    assert shown == [View("url", None, first), View("url", first, second)]


def test_an_engine_that_goes_away_is_said_so_and_waited_for() -> None:
    first, again = Reading(0, []), Reading(9, [])
    _, shown, gone, still, back = views(first, GoneError("refused"), GoneError("refused"), again)
    assert shown.problem is None
    assert gone == still
    assert gone.now is first
    assert gone.problem == "no figures: refused; waiting for the engine"
    # An engine that is back may be a new one, whose counts begin at 0.
    assert back == View("url", None, again)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("localhost:8000", "http://localhost:8000/metrics"),
        ("http://host:8000/", "http://host:8000/metrics"),
        ("https://host", "https://host/metrics"),
        ("host:1/engines/3/metrics", "http://host:1/engines/3/metrics"),
        ("[::1]:8000", "http://[::1]:8000/metrics"),
    ],
)
def test_an_address_needs_no_path(text: str, url: str) -> None:
    assert metrics_url(text) == url


@pytest.mark.parametrize(
    "text", ["", "file:///etc/passwd", "http://", "host:port", "ftp://host", "http://[::1", "a b"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="no address"):
        metrics_url(text)
