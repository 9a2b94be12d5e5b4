"""A decode step of 1,024 running requests against vLLM's own `KVCacheManager.allocate_slots`."""

import time

import numpy as np
import torch
from _rows import Row, against, show
from hybrid_blocks import BlockManager, GroupSpec, block_hasher
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

NUM_REQUESTS = 1_024
NUM_BLOCKS = 60_000
PROMPT = 512
BLOCK_SIZE = 16
NUM_STEPS = 160  # ten blocks a request
ALGORITHM = "sha256"


class Theirs:
    """vLLM's manager and the requests as its scheduler holds them."""

    def __init__(self, prompts: list[list[int]]) -> None:
        function = get_hash_fn_by_name(ALGORITHM)
        kv_cache_utils.init_none_hash(function)
        spec = FullAttentionSpec(
            block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        config = KVCacheConfig(
            num_blocks=NUM_BLOCKS,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        self.manager = KVCacheManager(config, 1 << 20, BLOCK_SIZE, BLOCK_SIZE)
        hasher = kv_cache_utils.get_request_block_hasher(BLOCK_SIZE, function)
        self.requests = [
            Request(
                request_id=str(number),
                prompt_token_ids=prompt,
                sampling_params=SamplingParams(max_tokens=4 * NUM_STEPS),
                pooling_params=None,
                block_hasher=hasher,
            )
            for number, prompt in enumerate(prompts)
        ]
        for request in self.requests:
            self.manager.get_computed_blocks(request)
            if self.manager.allocate_slots(request, PROMPT) is None:
                raise AssertionError("vLLM's pool is too small")
            request.num_computed_tokens = PROMPT

    def sample(self, tokens: list[int]) -> None:
        """Append one sampled token to each request, which hashes full blocks."""
        for request, token in zip(self.requests, tokens, strict=True):
            request.append_output_token_ids(token)

    def step(self) -> None:
        """Make room for one token of each request and record it as computed."""
        allocate_slots = self.manager.allocate_slots
        for request in self.requests:
            allocate_slots(request, 1)
            request.num_computed_tokens += 1

    def tables(self) -> list[list[int]]:
        """Return the block tables, by request."""
        return [self.manager.get_block_ids(request.request_id)[0] for request in self.requests]


class Ours:
    """The manager and the handles of its requests."""

    def __init__(self, prompts: list[list[int]]) -> None:
        self.manager = BlockManager(
            [GroupSpec("full", BLOCK_SIZE)],
            block_hasher(ALGORITHM, BLOCK_SIZE),
            num_blocks=NUM_BLOCKS,
        )
        self.ones = np.ones(NUM_REQUESTS, dtype=np.int32)
        self.handles = np.array(
            [self.manager.add_request(str(n), prompt) for n, prompt in enumerate(prompts)]
        )
        counts = np.full(NUM_REQUESTS, PROMPT, dtype=np.int32)
        if self.manager.allocate(self.handles, counts) != NUM_REQUESTS:
            raise AssertionError("our pool is too small")
        self.manager.advance(self.handles, counts)

    def sample(self, tokens: np.ndarray) -> None:
        """Append one sampled token to each request, which hashes full blocks."""
        self.manager.append_tokens(self.handles, tokens)

    def step(self) -> None:
        """Make room for one token of each request and record it as computed."""
        self.manager.allocate(self.handles, self.ones)
        self.manager.advance(self.handles, self.ones)

    def tables(self) -> list[list[int]]:
        """Return the block tables, by request."""
        return [self.manager.block_ids(handle).tolist() for handle in self.handles.tolist()]


def run() -> list[Row]:
    rng = np.random.default_rng(0)
    prompts = rng.integers(0, 150_000, (NUM_REQUESTS, PROMPT)).tolist()
    theirs, ours = Theirs(prompts), Ours(prompts)
    spent = np.zeros((NUM_STEPS, 4))
    for step in range(NUM_STEPS):
        tokens = rng.integers(0, 150_000, NUM_REQUESTS, dtype=np.int32)
        as_list = tokens.tolist()
        marks = [time.perf_counter()]
        theirs.sample(as_list)
        marks.append(time.perf_counter())
        theirs.step()
        marks.append(time.perf_counter())
        ours.sample(tokens)
        marks.append(time.perf_counter())
        ours.step()
        marks.append(time.perf_counter())
        spent[step] = np.diff(marks)
        if step in {0, NUM_STEPS - 1} and theirs.tables() != ours.tables():
            raise AssertionError(f"block tables differ after step {step}")
    # The best of the rounds of 16 steps in which every request starts one block.
    rounds = spent.reshape(-1, BLOCK_SIZE, 4).mean(axis=1)
    their_sample, their_step, our_sample, our_step = rounds.min(axis=0) / NUM_REQUESTS * 1e9
    name = "decode step of 1,024 requests, allocate + advance"
    return [
        against(name, "ns/request", our_step, their_step, at_least=40, at_most=100),
        against(
            "the same with the sampled tokens appended and hashed",
            "ns/request",
            our_sample + our_step,
            their_sample + their_step,
        ),
    ]


if __name__ == "__main__":
    show("decode step", run())
