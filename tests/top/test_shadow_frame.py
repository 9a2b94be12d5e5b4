"""The view of a shadow: what the engine found, and each replay beside it."""

from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from hybrid_blocks.tools.shadow.publish import _text
from hybrid_blocks.tools.top.frame import View, frame
from hybrid_blocks.tools.top.read import Reading, parse


def engine(counts: Mapping[tuple[str, str], float], behind: float = 31.0, **peaks: int) -> Any:
    return SimpleNamespace(shadow=SimpleNamespace(counts=counts, behind=behind), peaks=peaks)


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
    text = _text({0: engine(counts, vllm=12, natural=15)}, {"model_name": "m"})
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


def test_engines_are_labelled_summed_and_as_far_behind_as_the_last() -> None:
    counts = {("requests", ""): 5, ("prompt_tokens", ""): 10, ("found_tokens", "engine"): 4}
    text = _text({0: engine(counts, 7.0, vllm=1), 1: engine(counts, 9.0, vllm=2)}, {})
    assert text.count("# TYPE hybrid_blocks_shadow_requests_total counter") == 1
    assert 'hybrid_blocks_shadow_running{engine="1",replay="vllm"} 2' in text
    rows = frame(View("", None, parse(text, 0.0)), 100).plain.splitlines()
    assert " ".join(rows[2].split()) == "requests 10 9 s behind"
    assert "found 40.0%" in rows[4]


def test_a_model_of_any_name_is_one_label() -> None:
    name = 'a "folder" of\\models\n'
    text = _text({0: engine({("requests", ""): 1})}, {"model_name": name})
    line = next(it for it in text.splitlines() if it[0] != "#")
    assert r'model_name="a \"folder\" of\\models\n"' in line
