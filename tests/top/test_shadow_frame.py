"""The view of a shadow: what the engine found, and each replay beside it."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

from hybrid_blocks.metrics import Sample
from hybrid_blocks.tools.shadow.publish import _samples, _text
from hybrid_blocks.tools.top.frame import View, frame
from hybrid_blocks.tools.top.read import Reading, parse

LABELS = {"model_name": "m", "engine": "0"}


def reading(minutes: int) -> Reading:
    counts: Counter[tuple[str, str]] = Counter()
    one = {
        ("requests", ""): 600,
        ("compared", ""): 590,
        ("left_out", "unseen"): 10,
        ("prompt_tokens", ""): 1000,
        ("differing_tokens", ""): 5,
        ("found_tokens", "engine"): 600,
        ("found_tokens", "vllm"): 605,
        ("found_tokens", "natural"): 800,
        ("preemptions", "vllm"): 120,
        ("preemptions", "natural"): 0,
        ("first_tokens", "natural"): 600,
        ("first_token_seconds", "natural"): 150.0,
    }
    counts.update({key: value * minutes for key, value in one.items()})
    shadow: Any = SimpleNamespace(counts=counts, behind=31.0)
    text = _text(_samples(shadow, {"vllm": 12, "natural": 15}), LABELS)
    return parse(text, 60.0 * minutes)


def test_a_frame_shows_the_engine_and_both_replays() -> None:
    view = View("http://localhost:9401/metrics", reading(1), reading(2))
    rows = [" ".join(line.split()) for line in frame(view, 100).plain.splitlines()]
    assert rows[1:] == [
        "shadow",
        "requests 10/s 31 s behind unseen 0.2/s",
        "own replay differs 0.5%",
        "engine found 60.0%",
        "natural found 80.0% first token 0.25 s at once 15 preempted 0/s",
        "vllm found 60.5% at once 12 preempted 2/s",
    ]


def test_a_model_of_any_name_is_one_label() -> None:
    sample = Sample("shadow_requests", "Requests.", "counter", {"replay": "vllm"}, 1)
    name = 'a "folder" of\\models\n'
    (line,) = (
        it for it in _text(iter([sample]), {"model_name": name}).splitlines() if it[0] != "#"
    )
    assert r'model_name="a \"folder\" of\\models\n"' in line
