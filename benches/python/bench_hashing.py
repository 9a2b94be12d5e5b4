"""Block hashing from Python against vLLM's own functions, on a prompt of 2,000 tokens."""

from typing import get_args

import numpy as np
from _rows import Row, against, seconds, show, within
from hybrid_blocks.hashing import Algorithm, BlockHasher, block_hasher
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import BlockHash, hash_block_tokens

BLOCK_SIZE = 16
NUM_TOKENS = 2_000
NUM_BLOCKS = NUM_TOKENS // BLOCK_SIZE
TARGETS: dict[Algorithm, float] = {"sha256": 2.5, "sha256_cbor": 8, "xxhash_cbor": 20}


def vllm_chain(hasher: BlockHasher, algorithm: Algorithm, tokens: list[int]) -> list[bytes]:
    function = get_hash_fn_by_name(algorithm)
    parent = BlockHash(hasher.none_hash)
    digests: list[bytes] = []
    for start in range(0, len(tokens) - BLOCK_SIZE + 1, BLOCK_SIZE):
        parent = hash_block_tokens(function, parent, tokens[start : start + BLOCK_SIZE], None)
        digests.append(parent)
    return digests


def run() -> list[Row]:
    array = np.random.default_rng(0).integers(0, 150_000, NUM_TOKENS, dtype=np.int32)
    tokens = array.tolist()
    rows = []
    for algorithm in get_args(Algorithm):
        hasher = block_hasher(algorithm, BLOCK_SIZE)

        def theirs(hasher: BlockHasher = hasher, algorithm: Algorithm = algorithm) -> list[bytes]:
            return vllm_chain(hasher, algorithm, tokens)

        def from_list(hasher: BlockHasher = hasher) -> list[bytes]:
            return hasher.hash_blocks(tokens)

        def from_array(hasher: BlockHasher = hasher) -> list[bytes]:
            return hasher.hash_blocks(array)

        if not theirs() == from_list() == from_array():
            raise AssertionError(f"{algorithm}: digests differ from vLLM's")
        baseline, a_list, an_array = seconds(theirs, from_list, from_array)
        per_block = 1e9 / NUM_BLOCKS
        for source, value in (("list", a_list), ("int32 array", an_array)):
            name = f"{algorithm}, 16-token block, {source}"
            target = TARGETS.get(algorithm)
            rows.append(
                against(name, "ns", value * per_block, baseline * per_block, at_least=target)
            )
        if algorithm == "sha256":
            rows.append(within("sha256, 2,000-token prompt, list", "µs", a_list * 1e6, 60))
    return rows


if __name__ == "__main__":
    show("block hashing", run())
