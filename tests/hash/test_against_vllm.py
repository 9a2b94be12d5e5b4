"""Digests are those of vLLM's own functions, bit for bit."""

from typing import Any

import numpy as np
import pytest
from hybrid_blocks.hashing import Algorithm, BlockHasher, block_hasher, hash_function, none_hash
from hypothesis import given
from hypothesis import strategies as st
from strategies import algorithms, blocks, exotic_atoms, shared_tuples, texts, token_ids
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.request import Request

PARENT = bytes(range(100, 132))


def parent_of(algorithm: Algorithm) -> bytes:
    return PARENT if algorithm.startswith("sha256") else PARENT[:16]


def refuse(value: object) -> bytes:
    raise AssertionError(f"the core left {value!r} to Python")


@given(algorithm=algorithms, tokens=blocks, extra=st.none() | shared_tuples())
def test_one_block_with_any_tokens_and_plain_extra_keys(
    algorithm: Algorithm, tokens: list[int], extra: tuple[Any, ...] | None
) -> None:
    parent = parent_of(algorithm)
    expected = kv_cache_utils.hash_block_tokens(
        get_hash_fn_by_name(algorithm), kv_cache_utils.BlockHash(parent), tokens, extra
    )
    assert BlockHasher(algorithm, 16, parent, refuse).hash_block(tokens, parent, extra) == expected


@given(algorithm=algorithms, tokens=blocks, extra=shared_tuples(exotic_atoms))
def test_one_block_with_extra_keys_that_only_python_can_serialize(
    algorithm: Algorithm, tokens: list[int], extra: tuple[Any, ...]
) -> None:
    parent = parent_of(algorithm)
    expected = get_hash_fn_by_name(algorithm)((parent, tuple(tokens), extra))
    assert block_hasher(algorithm).hash_block(tokens, parent, extra) == expected


@given(
    algorithm=algorithms,
    tokens=st.lists(token_ids, max_size=60),
    block_size=st.integers(1, 20),
    data=st.data(),
)
def test_a_chain_of_blocks_with_extra_keys_each(
    algorithm: Algorithm, tokens: list[int], block_size: int, data: st.DataObject
) -> None:
    num_blocks = len(tokens) // block_size
    keys = st.none() | shared_tuples() | shared_tuples(exotic_atoms)
    extras = data.draw(st.lists(keys, min_size=num_blocks, max_size=num_blocks))
    parent, expected = kv_cache_utils.BlockHash(parent_of(algorithm)), []
    for i, extra in enumerate(extras):
        block = tokens[i * block_size : (i + 1) * block_size]
        function = get_hash_fn_by_name(algorithm)
        parent = kv_cache_utils.hash_block_tokens(function, parent, block, extra)
        expected.append(parent)
    hasher = block_hasher(algorithm, block_size)
    assert hasher.hash_blocks(tokens, parent_of(algorithm), extras) == expected
    array = hasher.hash_blocks_array(tokens, parent_of(algorithm), extras)
    assert array.shape == (num_blocks, hasher.digest_size)
    assert [row.tobytes() for row in array] == expected


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """A request as vLLM's engine makes it, with every source of extra keys."""
    tokens = draw(st.lists(st.integers(0, 150_000), min_size=1, max_size=120))
    name = st.sampled_from(["a", "adapter"]) | texts.filter(bool)
    lora = LoRARequest(draw(name), 1, draw(name)) if draw(st.booleans()) else None
    identifiers = draw(st.lists(texts, min_size=1, max_size=2))
    features, end = [], 0
    for _ in range(draw(st.integers(0, 6))):
        offset = end + draw(st.integers(0, 10))
        end = offset + draw(st.integers(1, 30))
        features.append(
            MultiModalFeatureSpec(
                data=None,
                modality="image",
                identifier=draw(st.sampled_from(identifiers)),
                mm_position=PlaceholderRange(offset=offset, length=end - offset),
            )
        )
    salt = draw(st.none() | texts)
    more: Any = {"mm_features": features, "lora_request": lora, "cache_salt": salt}
    return Request("r", tokens, SamplingParams(max_tokens=1), None, **more)


@given(
    algorithm=algorithms,
    request=requests(),
    block_size=st.integers(1, 16),
    num_lookahead_tokens=st.integers(0, 3),
)
def test_a_request_with_adapters_images_salt_and_lookahead(
    algorithm: Algorithm, request: Request, block_size: int, num_lookahead_tokens: int
) -> None:
    seed = kv_cache_utils.BlockHash(none_hash(algorithm))
    patch = pytest.MonkeyPatch()
    patch.setattr(kv_cache_utils, "NONE_HASH", seed, raising=False)
    with patch.context():
        expected = kv_cache_utils.get_request_block_hasher(
            block_size, get_hash_fn_by_name(algorithm), num_lookahead_tokens
        )(request)
    patch.undo()

    hasher = BlockHasher(
        algorithm, block_size, seed, refuse, num_lookahead_tokens=num_lookahead_tokens
    )
    extras, mm_index = [], 0
    for i in range(len(expected)):
        start, end = i * block_size, (i + 1) * block_size
        extra, mm_index = kv_cache_utils.generate_lookahead_block_hash_extra_keys(
            request, start, end, end + num_lookahead_tokens, mm_index
        )
        extras.append(extra)
    assert hasher.hash_blocks(list(request.all_token_ids), extra_keys=extras) == expected


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
@pytest.mark.parametrize("seed", [None, "0", "another seed"])
def test_the_parent_of_a_first_block_follows_the_same_rule(
    algorithm: Algorithm, seed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed is None:
        monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    else:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    kv_cache_utils.init_none_hash(get_hash_fn_by_name(algorithm))
    assert none_hash(algorithm) == kv_cache_utils.NONE_HASH
    assert block_hasher(algorithm).none_hash == kv_cache_utils.NONE_HASH


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor"])
def test_without_a_seed_xxhash_starts_at_random_once_a_process(algorithm: Algorithm) -> None:
    assert none_hash(algorithm, {}) == none_hash(algorithm, {})
    assert none_hash(algorithm, {}) != hash_function(algorithm)("vllm-none-hash")
    expected = get_hash_fn_by_name(algorithm)("7")
    assert none_hash(algorithm, {"PYTHONHASHSEED": "7"}) == expected


@given(algorithm=algorithms, value=shared_tuples(exotic_atoms))
def test_the_fallback_is_the_same_function(algorithm: Algorithm, value: tuple[Any, ...]) -> None:
    assert hash_function(algorithm)(value) == get_hash_fn_by_name(algorithm)(value)


@given(algorithm=algorithms, tokens=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=64))
def test_arrays_hash_as_lists_of_the_same_numbers(algorithm: Algorithm, tokens: list[int]) -> None:
    hasher = block_hasher(algorithm, 4)
    expected = hasher.hash_blocks(tokens)
    assert hasher.hash_blocks(np.array(tokens, np.int32)) == expected
    assert hasher.hash_blocks(np.array(tokens, np.int64)) == expected
    assert hasher.hash_blocks(tuple(tokens)) == expected
