"""Inside vLLM: what its scheduler pays for blocks, and for a whole step, level by level."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from _rows import Row, against, seconds, show
from _vllm_managers import Side, check_tables, forgetful_hasher, sides
from hybrid_blocks.tools.profile.engine import Groups
from hybrid_blocks.tools.profile.process import profile
from hybrid_blocks.tools.profile.workload import Settings
from hybrid_blocks.vllm import pool
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

NUM_DECODING = 256
ROUND = 16
ROUNDS = 6
PROMPT = 2_000
LONG = 100_000
MILLION = 1_000_000
REPEAT = 5


def prompt(seed: int, length: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, 150_000, length).tolist()
    return tokens


def decode(groups: Groups, name: str, at_least: float | None) -> Row:
    """`allocate_slots` for one token, in steps that begin blocks as often as any."""
    both = sides(groups, 200_000, 4_096)
    for side in both:
        for number in range(NUM_DECODING):
            # Lengths that differ spread the steps at which requests begin a block.
            request = side.make_request(str(number), prompt(number, 1_056 + 2 * number))
            side.admit(request, side.look_up(request))
            side.requests.append(request)
    rounds = np.zeros((ROUNDS, 2))
    for number in range(ROUNDS):
        for _ in range(ROUND):
            for column, side in enumerate(both):
                for request in side.requests:
                    request.append_output_token_ids(number)
                allocate = side.manager.allocate_slots
                start = time.perf_counter()
                for request in side.requests:
                    allocate(request, 1)
                rounds[number, column] += time.perf_counter() - start
                for request in side.requests:
                    request.num_computed_tokens += 1
    for requests in zip(both[0].requests, both[1].requests, strict=True):
        check_tables(both, requests)
    theirs, ours = rounds.min(axis=0) / (ROUND * NUM_DECODING) * 1e6
    return against(name, "µs", ours, theirs, at_most=1, at_least=at_least)


def life(side: Side, request_id: str, tokens: list[int]) -> tuple[Request, list[float], Any]:
    """Match, allocate and free one prompt; return the seconds of each."""
    request = side.make_request(request_id, tokens)
    marks = [time.perf_counter()]
    hit = side.look_up(request)
    marks.append(time.perf_counter())
    side.admit(request, hit)
    marks.append(time.perf_counter())
    table = side.table(request)
    resumed = time.perf_counter()
    side.manager.free(request)
    freed = time.perf_counter()
    spent = [after - before for before, after in pairwise(marks)]
    return request, [*spent, freed - resumed], (hit[1], table)


def use_every_block(both: tuple[Side, Side], length: int) -> None:
    """Fill the pools once and empty them, so that no memory is touched for the first time later."""
    for side in both:
        left: int = side.manager.block_pool.num_gpu_blocks
        while left > 0:
            _, _, (_, table) = life(side, f"first use {left}", prompt(1_000 + left, length))
            left -= sum(np.count_nonzero(ids) for ids in table)
        if not side.manager.reset_prefix_cache():
            raise AssertionError("blocks are still in use")


def lives(
    both: tuple[Side, Side], prompts: list[list[int]], *, is_cached: bool = False
) -> np.ndarray:
    """Return the best seconds [side, phase] of match, allocation and free, one prompt at a time."""
    spent = np.full((2, 3), np.inf)
    for number, tokens in enumerate(prompts):
        seen = []
        for index, side in enumerate(both):
            _, times, result = life(side, str(number), tokens)
            spent[index] = np.minimum(spent[index], times)
            seen.append(result)
        if seen[0] != seen[1]:
            raise AssertionError(f"hits or block tables of prompt {number} differ")
        if (seen[0][0] > 0) is not is_cached:
            raise AssertionError(f"prompt {number} hits {seen[0][0]} tokens")
    return spent


def admission() -> Row:
    both = sides(Groups.SWA, 60_000, 4_096)
    use_every_block(both, PROMPT)
    spent = lives(both, [prompt(seed, PROMPT) for seed in range(4 * REPEAT)])
    theirs, ours = spent[:, :2].sum(axis=1) * 1e6
    return against("admission of a 2,000-token prompt, 6 groups", "µs", ours, theirs, at_most=30)


def conversation(groups: Groups, title: str, limits: tuple[float, float, float]) -> list[Row]:
    """A long prompt computed for the first time, and the same one when it returns."""
    both = sides(groups, 50_000 if groups is Groups.FULL else 6_000, LONG + 1_000)
    use_every_block(both, LONG)
    first = lives(both, [prompt(seed, LONG) for seed in range(REPEAT)]) * 1e3
    again = lives(both, [prompt(REPEAT - 1, LONG)] * (4 * REPEAT), is_cached=True) * 1e3
    match, adopt, free = limits
    rows = (
        ("match", again[:, 0], match),
        ("adopt and cache", again[:, 1], adopt),
        ("allocate and cache what is not cached", first[:, 1], adopt),
        ("free", again[:, 2], free),
    )
    return [
        against(f"{title}: {name}", "ms", ours, theirs, at_most=limit)
        for name, (theirs, ours), limit in rows
    ]


def hashing() -> list[Row]:
    both = sides(Groups.FULL, 100, 4_096)
    known, both[1].hasher = both[1].hasher, forgetful_hasher()
    tokens = prompt(0, PROMPT)
    if (
        both[0].make_request("a", tokens).block_hashes
        != both[1].make_request("a", tokens).block_hashes
    ):
        raise AssertionError("block hashes differ")

    def make(side: Side) -> Callable[[], object]:
        return lambda: side.make_request("a", tokens)

    theirs, ours = seconds(make(both[0]), make(both[1]))
    made = "a request of 2,000 tokens made, blocks hashed"
    hashers = (both[0].hasher, both[1].hasher, known)
    vllms, first, again = returning(hashers)
    long = "100,000 tokens hashed"
    return [
        against(made, "µs", ours * 1e6, theirs * 1e6, at_most=60),
        against(f"{long} for the first time", "ms", first * 1e3, vllms * 1e3),
        against(f"{long} again, not anew", "ms", again * 1e3, first * 1e3, at_least=10),
    ]


def returning(hashers: Sequence[Any]) -> list[float]:
    """Return what each takes for the blocks of a long prompt that it has seen before."""
    request = Request(
        request_id="a",
        prompt_token_ids=prompt(0, LONG),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
    )
    if any(hasher(request) != hashers[0](request) for hasher in hashers):
        raise AssertionError("block hashes differ")
    return seconds(*(partial(hasher, request) for hasher in hashers))


def construction() -> list[Row]:
    theirs, ours = seconds(
        lambda: pool.VllmBlockPool(MILLION, True, 16),
        lambda: pool.BlockPool(MILLION, True, 16),
        repeat=2,
    )
    size: int = pool.BlockPool(MILLION, True, 16)._blocks.memory_bytes()  # type: ignore[attr-defined]
    per_block = size / MILLION
    return [
        against("vLLM's pool of a million blocks made", "ms", ours * 1e3, theirs * 1e3),
        Row(
            name="memory of a block in vLLM's pool",
            unit="bytes",
            value=per_block,
            target="≤ 64",
            ok=per_block <= 64,
        ),
    ]


STEPS: tuple[tuple[str, Settings, tuple[tuple[str, float], ...]], ...] = (
    (
        "256 running, 3 Mamba align + 1 full",
        Settings(level="", groups="hybrid", steps=300),
        (("manager", 3), ("batched", 6)),
    ),
    (
        # A step admits two requests, so only long answers let 1,024 of them run at a time.
        "1,024 running, 3 Mamba align + 1 full",
        Settings(
            level="",
            groups="hybrid",
            requests=1_024,
            output_tokens=768,
            warmup_steps=650,
            steps=150,
        ),
        (("manager", 3), ("batched", 8)),
    ),
    (
        "256 running, 1 full + 5 sliding",
        Settings(level="", groups="swa", steps=300),
        (("manager", 2.2),),
    ),
    ("256 running, 1 full", Settings(level="", groups="full", steps=300), (("manager", 1.8),)),
)
"""Name, load, and how much faster than without the plugin each level has to be."""


def steps() -> list[Row]:
    """`schedule` + `update_from_output`; the profile refuses levels that decide differently."""
    rows = []
    for name, settings, targets in STEPS:
        found = profile(settings, ["off", *(level for level, _ in targets)])
        baseline = found["off"].result
        if baseline.running < 0.95 * settings.requests:
            raise AssertionError(f"only {baseline.running:.0f} of {settings.requests} run")
        for level, at_least in targets:
            ours = found[level].result.step_us_p50
            title = f"step, {name}, level {level}"
            rows.append(against(title, "µs", ours, baseline.step_us_p50, at_least=at_least))
    return rows


def agentic_churn() -> Row:
    """Long prompts that share almost all: the share of a step that goes to blocks."""
    settings = Settings(
        level="",
        groups="full",
        requests=64,
        prompt_tokens=16_384,
        shared_tokens=15_360,
        output_tokens=64,
        max_num_batched_tokens=16_384,
        warmup_steps=100,
        steps=200,
    )
    found = profile(settings, ["off", "manager"])
    theirs, ours = (100 * found[level].result.block_share for level in ("off", "manager"))
    return against(
        "agentic churn: block management's share of a step", "%", ours, theirs, at_most=5
    )


def run() -> list[Row]:
    align, mixed = (
        "allocate_slots at decode, 3 Mamba align + 1 full",
        "the same, 1 full + 5 sliding",
    )
    return [
        decode(Groups.HYBRID, align, at_least=15),
        decode(Groups.SWA, mixed, at_least=None),
        admission(),
        *conversation(Groups.FULL, "returning 100,000 tokens, 1 full", (0.1, 0.2, 0.1)),
        *conversation(Groups.HYBRID, "returning 100,000 tokens, hybrid", (0.03, 0.1, 0.01)),
        *hashing(),
        *construction(),
        *steps(),
        agentic_churn(),
    ]


if __name__ == "__main__":
    show("inside vLLM", run())
