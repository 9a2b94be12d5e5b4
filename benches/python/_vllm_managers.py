"""vLLM's `KVCacheManager` and the native one side by side, given the same requests."""

import os
from collections.abc import Sequence
from typing import Any

from hybrid_blocks.tools.profile.engine import HASH_BLOCK_SIZE, Groups
from hybrid_blocks.vllm import install
from hybrid_blocks.vllm.level import KNOWN_PROMPTS, VARIABLE
from hybrid_blocks.vllm.manager import hasher, kv_cache_manager, native
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.request import Request

# Reached through their modules: taking the plugin out renames them here.


class Side:
    """One manager, the hasher that goes with it, and its requests."""

    def __init__(self, manager: Any, hasher: Any, block_size: int) -> None:
        self.manager = manager
        self.block_size = block_size
        self.hasher = hasher
        self.requests: list[Request] = []

    def make_request(self, request_id: str, tokens: list[int]) -> Request:
        """Make a request, which hashes its blocks."""
        return Request(
            request_id=request_id,
            prompt_token_ids=tokens,
            sampling_params=SamplingParams(max_tokens=4096, ignore_eos=True),
            pooling_params=None,
            block_hasher=self.hasher,
        )

    def look_up(self, request: Request) -> Any:
        """Return the hit's blocks and its tokens."""
        return self.manager.get_computed_blocks(request)[:2]

    def admit(self, request: Request, hit: Any) -> None:
        """Adopt a hit and make room for the rest of the prompt, a chunk at a time.

        States are cached where chunks end, so that there is one that ends with the last block.
        """
        blocks, num_hit = hit
        size = self.block_size
        for end in (request.num_tokens // size * size, request.num_tokens):
            missing = end - request.num_computed_tokens - num_hit
            if missing <= 0:
                continue
            self.manager.new_step_starts()
            if self.manager.allocate_slots(request, missing, num_hit, blocks) is None:
                raise AssertionError("the pool is too small")
            request.num_computed_tokens = end
            blocks, num_hit = None, 0

    def table(self, request: Request) -> tuple[list[int], ...]:
        """Return the block ids by group."""
        ids: tuple[list[int], ...] = self.manager.get_block_ids(request.request_id)
        return ids


def sides(groups: Groups, num_blocks: int, max_model_len: int) -> tuple[Side, Side]:
    """Return vLLM's own and ours."""
    init_none_hash(sha256)
    os.environ[VARIABLE] = "manager"
    arguments: dict[str, Any] = {
        "kv_cache_config": groups.config(num_blocks),
        "max_model_len": max_model_len,
        "max_in_flight_tokens": 8192,
        "scheduler_block_size": groups.block_size,
        "hash_block_size": HASH_BLOCK_SIZE,
        "log_stats": True,
    }
    theirs = kv_cache_manager.VllmKVCacheManager(**arguments)
    install.install()
    try:
        ours = native.NativeKVCacheManager(**arguments)
    finally:
        install.uninstall()
    size = groups.block_size
    return (
        Side(theirs, hasher.vllm_get_request_block_hasher(HASH_BLOCK_SIZE, sha256), size),
        Side(ours, hasher.get_request_block_hasher(HASH_BLOCK_SIZE, sha256), size),
    )


def forgetful_hasher() -> Any:
    """Return our hasher without memory for prompts: it hashes each as if for the first time."""
    os.environ[KNOWN_PROMPTS] = "0"
    try:
        return hasher.get_request_block_hasher(HASH_BLOCK_SIZE, sha256)
    finally:
        del os.environ[KNOWN_PROMPTS]


def check_tables(both: Sequence[Side], requests: Sequence[Request]) -> None:
    """Raise unless both gave their requests the same blocks."""
    theirs, ours = (side.table(request) for side, request in zip(both, requests, strict=True))
    if theirs != ours:
        raise AssertionError(f"block tables of {requests[0].request_id} differ")
