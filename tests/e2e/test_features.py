"""Requests of every sort at once answer as vLLM does, at each level and scheduled in one call.

Adapters, grammars, log probabilities, several samples, priorities; drafts of a head and of n-grams.
"""

import json
from functools import cache
from operator import eq
from pathlib import Path
from statistics import mean
from typing import Any

import models
import pytest
import vllm
from hybrid_blocks.vllm.surface.support import release_of
from program import is_scheduled_in_one_call
from rounds import MTP, NGRAMS, Prompt, Result, assert_close, prompt, run
from server import ONE_BY_ONE
from traffic import PREFIX

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

# Level natural cuts prompts at other places than vLLM does.
LEVELS = {
    "off": "off",
    "off again": "off",
    "manager": "manager" + ONE_BY_ONE,
    "batched": "manager",
    "natural": "natural" + ONE_BY_ONE,
    "natural-batched": "natural",
}
OURS = [level for level in LEVELS if not level.startswith("off")]

SCHEMA = {
    "type": "object",
    "properties": {"width": {"type": "integer", "maximum": 999}, "kind": {"enum": ["a", "b"]}},
    "required": ["width", "kind"],
    "additionalProperties": False,
}
CHUNKS: dict[str, Any] = {"max_num_batched_tokens": 256}
SORTS = ("plain", "likeliest", "grammar", "samples")
NUM_REQUESTS = 48
BOTH_TIMES = 2  # each prompt is sent twice; the second may hit what the first left


def requests_of_all_sorts(model: Path, *, with_adapters: bool, top_k: int) -> list[Prompt]:
    """Requests in turn: plain, with log probabilities, bound to a schema, with three samples."""
    requests = []
    for number in range(NUM_REQUESTS):
        story = number // BOTH_TIMES
        sort = SORTS[story % len(SORTS)]
        request = prompt(f"Story {story}. {PREFIX[story : story + 250]}", max_tokens=40)
        request["priority"] = number % 3
        sampling = request["sampling"]
        if sort == "likeliest":
            sampling["logprobs"] = 3
            if not with_adapters:  # vLLM's CPU operators for adapters fail at prompts
                sampling["prompt_logprobs"] = 2
        elif sort == "grammar":
            request["schema"] = SCHEMA
            sampling.update(ignore_eos=False, max_tokens=200)
        elif sort == "samples":
            sampling.update(n=3, temperature=0.8, top_k=top_k)
        if with_adapters and (adapter := story % 3):
            request["adapter"] = str(models.build_adapter(model, adapter))
        requests.append(request)
    return requests


@cache
def mixed(kind: str, level: str, *, is_cut_otherwise: bool) -> Result:
    """Requests of all sorts, of several priorities; with adapters where vLLM's CPU build has them.

    Samples are drawn from all tokens, or where prompts are cut otherwise only the likeliest is one.
    Their seed is the engine's: vLLM's CPU build fails at a request with a seed of its own where its
    prompt is cut.
    """
    model = models.build(kind)
    with_adapters = kind == "granitemoehybrid"
    # vLLM 0.32's CPU operators answer otherwise where prompts are cut at other places.
    if release_of(vllm.__version__) == "0.32" and is_cut_otherwise:
        with_adapters = False
    options = CHUNKS | {"scheduling_policy": "priority", "max_num_seqs": 12}
    if with_adapters:
        options |= {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    # One generator serves all samples, so random ones are the same in the same steps only.
    requests = requests_of_all_sorts(
        model, with_adapters=with_adapters, top_k=int(is_cut_otherwise)
    )
    return run(model, LEVELS[level], [requests], options)


@pytest.mark.parametrize("level", OURS)
@pytest.mark.parametrize("kind", ["granitemoehybrid", "gemma3_text"])
def test_requests_of_all_sorts_answer_as_without_the_plugin(kind: str, level: str) -> None:
    is_natural = level.startswith("natural")
    plain, again, ours = (
        mixed(kind, one, is_cut_otherwise=is_natural) for one in ("off", "off again", level)
    )
    assert again.answers == plain.answers, "in float32 and in one process vLLM repeats itself"
    assert_close(ours, plain, within=1e-3 if is_natural else 0.0)
    assert ours.is_idle_clean
    if is_natural:
        assert sum(ours.cached) >= sum(plain.cached)
    else:
        assert ours.cached == plain.cached
    for one in (plain, ours):
        assert mean(one.began[0::3]) < mean(one.began[1::3]) < mean(one.began[2::3]), "priorities"
    assert is_scheduled_in_one_call(ours.log) is level.endswith("batched")


def test_the_requests_are_of_all_sorts() -> None:
    """Answers follow their schemas, adapters change them, and samples differ."""
    answers = mixed("granitemoehybrid", "off", is_cut_otherwise=False).answers
    sorts = [SORTS[number // BOTH_TIMES % len(SORTS)] for number in range(NUM_REQUESTS)]
    for sort, answer in zip(sorts, answers, strict=True):
        assert (answer["likeliest"] is not None) is (sort == "likeliest")
        assert len(answer["tokens"]) == (3 if sort == "samples" else 1)
        if sort == "grammar" and answer["text"].rstrip().endswith("}"):
            assert json.loads(answer["text"])["kind"] in {"a", "b"}
        if sort == "samples":
            assert len({tuple(tokens) for tokens in answer["tokens"]}) == 3
    done = [it["text"].rstrip().endswith("}") for it in answers]
    assert sum(done) >= sorts.count("grammar") // 2
    model = models.build("granitemoehybrid")
    texts = requests_of_all_sorts(model, with_adapters=False, top_k=0)
    without = run(model, "off", [texts[:8]], CHUNKS | {"max_num_seqs": 32}).answers
    assert without[0]["tokens"] == answers[0]["tokens"]
    assert without[2]["tokens"] != answers[2]["tokens"]  # story 1 has an adapter
    assert (
        mixed("gemma3_text", "off", is_cut_otherwise=False).answers[2]["prompt_likeliest"]
        is not None
    )


DRAFTS = {"mtp": MTP, "ngram": NGRAMS}
NUM_STREAMS = 200


@cache
def drafted(method: str, level: str) -> Result:
    """Greedy answers to 200 requests at once, with drafts."""
    is_mtp = method == "mtp"
    model = models.build_with_draft_head() if is_mtp else models.build("gemma3_text")
    texts = (f"{n * 37 % 1000:03} {PREFIX[n % 50 : n % 50 + 150]}" for n in range(NUM_STREAMS))
    options = CHUNKS | {"speculative_config": DRAFTS[method], "max_num_seqs": 64}
    if is_mtp and level.startswith("natural"):
        options["block_size"] = 128  # vLLM's own block, so that sums are rounded alike
    return run(model, LEVELS[level], [[prompt(text, max_tokens=24) for text in texts]], options)


@pytest.mark.parametrize("level", OURS)
@pytest.mark.parametrize("method", DRAFTS)
def test_200_requests_with_drafts_answer_as_without_the_plugin(method: str, level: str) -> None:
    plain, ours = drafted(method, "off"), drafted(method, level)
    assert drafted(method, "off again").answers == plain.answers
    proposed = ours.metrics["vllm:spec_decode_num_draft_tokens"]
    accepted = ours.metrics["vllm:spec_decode_num_accepted_tokens"]
    assert 0 < accepted < proposed
    has_states = method == "mtp"
    kept = "chunks of prompts end at checkpoints: drafts beside states that a forward leaves"
    assert (kept in ours.log) == (has_states and level.startswith("natural"))
    equal = sum(map(eq, ours.answers, plain.answers))
    if has_states and level.startswith("natural"):
        # bfloat16: other batches round otherwise. A wrong state changes all that follows from it.
        assert equal >= NUM_STREAMS * 9 // 10
    else:
        assert equal == NUM_STREAMS
    assert ours.is_idle_clean
