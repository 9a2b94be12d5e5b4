"""Hashes of requests are vLLM's, byte for byte."""

from typing import Any

import pytest
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.vllm.level import KNOWN_PROMPTS, max_known_bytes
from hybrid_blocks.vllm.manager import hasher as ours
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher as vllm_hasher
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.request import Request

# vLLM looks ahead since 0.33.
LOOKAHEADS = (0, 0, 1, 2) if hasattr(BlockPool, "_lookahead_token_ids") else (0,)

FEATURES = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), max_size=3).map(
    lambda spans: [
        MultiModalFeatureSpec(
            data=None,
            modality="image",
            identifier=f"image{at}",
            mm_position=PlaceholderRange(offset=at * 40 + offset, length=length),
        )
        for at, (offset, length) in enumerate(spans)
    ]
)


def request(hasher: Any, prompt: list[int], features: Any, salt: str | None, lora: bool) -> Request:
    return Request(
        request_id="request",
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        mm_features=features,
        cache_salt=salt,
        lora_request=LoRARequest("adapter", 1, "/none") if lora else None,
        block_hasher=hasher,
    )


@pytest.mark.parametrize("function", ours.ALGORITHMS, ids=list(ours.ALGORITHMS.values()))
@settings(max_examples=60, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 200_000), min_size=1, max_size=130),
    output=st.lists(st.lists(st.integers(0, 200_000), min_size=1, max_size=20), max_size=4),
    features=FEATURES,
    salt=st.sampled_from((None, "salt")),
    lora=st.booleans(),
    lookahead=st.sampled_from(LOOKAHEADS),
    block_size=st.sampled_from((4, 16)),
)
def test_hashes_of_a_growing_request_are_vllms(  # noqa: PLR0917 - what hypothesis draws
    function: Any,
    prompt: list[int],
    output: list[list[int]],
    features: Any,
    salt: str | None,
    lora: bool,
    lookahead: int,
    block_size: int,
) -> None:
    init_none_hash(function)
    hasher = ours.get_request_block_hasher(block_size, function, lookahead)
    assert isinstance(hasher, ours.RequestHasher)
    ahead = (lookahead,) if lookahead else ()
    expected = request(vllm_hasher(block_size, function, *ahead), prompt, features, salt, lora)
    actual = request(hasher, prompt, features, salt, lora)
    assert actual.block_hashes == expected.block_hashes
    for tokens in output:
        expected.append_output_token_ids(tokens)
        actual.append_output_token_ids(tokens)
        assert actual.block_hashes == expected.block_hashes


# Python keeps one object of some of these ids; others lie around its digits of 30 bits and 32 bits.
TOKENS = (
    *(0, 1, 256, 257, 150_000, -1, -257),
    *((1 << bit) + offset for bit in (30, 31, 32, 60) for offset in (-1, 0, 1)),
)

# Few different tokens, so that many prompts begin alike.
PROMPTS: st.SearchStrategy[tuple[Any, ...]] = st.tuples(
    st.lists(st.integers(0, 1), min_size=1, max_size=40),
    st.just([]),
    st.sampled_from((None, None, None, "one", "another")),
    st.sampled_from((False, False, False, True)),
)


@settings(deadline=None)
@given(
    function=st.sampled_from(list(ours.ALGORITHMS)),
    lookahead=st.sampled_from(LOOKAHEADS),
    max_known=st.sampled_from(("0", "1KiB", "4KiB", "1GiB")),
    prompts=st.lists(PROMPTS, max_size=20),
    output=st.lists(st.integers(0, 1), max_size=12),
)
def test_prompts_that_begin_alike_have_vllms_hashes_each(
    function: Any, lookahead: int, max_known: str, prompts: list[Any], output: list[int]
) -> None:
    init_none_hash(function)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KNOWN_PROMPTS, max_known)
        hasher = ours.get_request_block_hasher(4, function, lookahead)
    ahead = (lookahead,) if lookahead else ()
    for prompt in prompts:
        expected = request(vllm_hasher(4, function, *ahead), *prompt)
        actual = request(hasher, *prompt)
        assert actual.block_hashes == expected.block_hashes
        expected.append_output_token_ids(list(output))
        actual.append_output_token_ids(list(output))
        assert actual.block_hashes == expected.block_hashes


@settings(deadline=None)
@given(
    known=st.lists(st.sampled_from(TOKENS), min_size=1, max_size=40),
    changed=st.dictionaries(st.integers(0, 39), st.sampled_from(TOKENS), max_size=2),
)
def test_tokens_of_all_sizes_are_told_from_known_ones(
    known: list[int], changed: dict[int, int]
) -> None:
    function = next(iter(ours.ALGORITHMS))
    init_none_hash(function)
    hasher = ours.get_request_block_hasher(4, function)
    prompts = known, [changed.get(index, token) for index, token in enumerate(known)]
    for prompt in (*prompts, *prompts):
        expected = request(vllm_hasher(4, function), prompt, [], None, lora=False)
        assert request(hasher, prompt, [], None, lora=False).block_hashes == expected.block_hashes


@pytest.mark.parametrize("at", [0, 5, 39])
@pytest.mark.parametrize("other", [True, 1.0, None, 1 << 64, object()])
def test_what_equals_a_known_token_and_is_none_is_refused(at: int, other: Any) -> None:
    function = next(iter(ours.ALGORITHMS))
    init_none_hash(function)
    hasher = ours.get_request_block_hasher(4, function)
    prompt: list[Any] = [1] * 40
    request(hasher, prompt, [], None, lora=False)
    prompt[at] = other
    with pytest.raises(InvalidArgumentError, match=f"token {at} is"):
        request(hasher, prompt, [], None, lora=False)


def test_a_prompt_that_returns_has_the_hash_objects_of_the_first() -> None:
    function = next(iter(ours.ALGORITHMS))
    init_none_hash(function)
    hasher = ours.get_request_block_hasher(4, function)

    def hashes(prompt: list[int], salt: str | None = None) -> list[Any]:
        return list(request(hasher, prompt, [], salt, lora=False).block_hashes)

    first, longer = hashes(list(range(40))), hashes(list(range(60)))
    assert all(one is other for one, other in zip(first, longer[:10], strict=True))
    again = hashes([*range(50), *range(1000, 1030)])
    shared = [one is other for one, other in zip(again, longer, strict=False)]
    assert shared == [True] * 12 + [False] * 3
    salted = hashes(list(range(40)), "salt")
    assert not set(salted) & set(first)
    assert salted[0] is not hashes(list(range(40)), "salt")[0]


def test_what_is_known_does_not_hold_for_another_first_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    function = next(iter(ours.ALGORITHMS))
    init_none_hash(function)
    hasher, prompt = ours.get_request_block_hasher(4, function), list(range(8))
    before = request(hasher, prompt, [], None, lora=False).block_hashes
    monkeypatch.setattr(kv_cache_utils, "NONE_HASH", kv_cache_utils.BlockHash(bytes(32)))
    after = request(hasher, prompt, [], None, lora=False).block_hashes
    assert after == request(vllm_hasher(4, function), prompt, [], None, lora=False).block_hashes
    assert not set(after) & set(before)


def test_a_memory_for_known_prompts_that_is_no_size_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(KNOWN_PROMPTS, "much")
    with pytest.raises(InvalidArgumentError, match="='much' is no size"):
        max_known_bytes()


def test_an_unknown_hash_function_gets_vllms_own_hasher() -> None:
    def function(value: object) -> bytes:
        return repr(value).encode()

    assert not isinstance(ours.get_request_block_hasher(16, function), ours.RequestHasher)
