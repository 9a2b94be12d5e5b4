"""vLLM's request hasher: all new blocks of a request at once, in Rust."""

from collections.abc import Callable
from typing import Any

from vllm.multimodal.utils import get_mm_features_in_window
from vllm.utils import hashing as vllm_hashing
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.core.kv_cache_utils import get_request_block_hasher as vllm_get_request_block_hasher
from vllm.v1.request import Request

from hybrid_blocks._core.vllm import RequestHasher as RustRequestHasher
from hybrid_blocks.hashing import Algorithm
from hybrid_blocks.vllm import releases
from hybrid_blocks.vllm.level import max_known_bytes

ALGORITHMS: dict[Callable[[Any], bytes], Algorithm] = {
    vllm_hashing.sha256: "sha256",
    vllm_hashing.sha256_cbor: "sha256_cbor",
    vllm_hashing.xxhash: "xxhash",
    vllm_hashing.xxhash_cbor: "xxhash_cbor",
}


def get_request_block_hasher(
    hash_block_size: int,
    caching_hash_fn: Callable[[Any], bytes],
    num_hash_lookahead_tokens: int = 0,
) -> Callable[[Request], list[BlockHash]]:
    """Return a function that computes the hashes of a request's blocks that have none yet.

    The hashes are vLLM's, byte for byte. A hash function that is not one of vLLM's gets vLLM's own
    hasher.
    """
    algorithm = ALGORITHMS.get(caching_hash_fn)
    if algorithm is None:
        further = releases.installed.hasher_arguments(num_hash_lookahead_tokens)
        return vllm_get_request_block_hasher(hash_block_size, caching_hash_fn, *further)
    return RequestHasher(
        hash_block_size,
        num_hash_lookahead_tokens,
        algorithm,
        caching_hash_fn,
        kv_cache_utils,
        max_known_bytes(),
    )


class RequestHasher(RustRequestHasher):
    """Hashes requests; called with one, it returns the hashes of its new blocks."""

    def __init__(self, block_size: int, num_lookahead_tokens: int, *_: Any) -> None:
        self._block_size = block_size
        self._lookahead = num_lookahead_tokens

    def _extra_keys(
        self, request: Request, start: int, num_blocks: int
    ) -> list[tuple[Any, ...] | None]:
        """Return the extra keys of ``num_blocks`` blocks, from token ``start`` on."""
        size = self._block_size
        features = request.mm_features
        mm_index = 0
        if start > 0 and features:
            last = features[-1].mm_position
            if last.offset + last.length > start:
                mm_index, _ = get_mm_features_in_window(features, start, start + size)
        all_keys = []
        for first in range(start, start + num_blocks * size, size):
            end = first + size
            if self._lookahead:
                keys, mm_index = kv_cache_utils.generate_lookahead_block_hash_extra_keys(
                    request, first, end, end + self._lookahead, mm_index
                )
            else:
                keys, mm_index = kv_cache_utils.generate_block_hash_extra_keys(
                    request, first, end, mm_index
                )
            all_keys.append(keys)
        return all_keys
