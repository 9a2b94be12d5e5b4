"""A worker's processor time for a decode step's tables and metadata, by number of cache groups.

Serves a small hybrid on vLLM's CPU engine, in an environment that `make test-e2e` makes, with
``PYTHONPATH=tests:tests/e2e:tests/vllm OMP_NUM_THREADS=1``.
"""

import argparse
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from time import thread_time_ns
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import models
from program import make_llm
from vllm import SamplingParams
from vllm.inputs import TokensPrompt
from vllm.v1.worker.block_table import MultiGroupBlockTable
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

BUILD = Path(__file__).parents[2] / "build" / "e2e"
STEP = "step"
TIMED = {
    STEP: (GPUModelRunner, ("execute_model", "sample_tokens")),
    "block tables": (
        MultiGroupBlockTable,
        ("append_row", "add_row", "commit_block_table", "compute_slot_mapping"),
    ),
    "attention metadata": (GPUModelRunner, ("_build_attention_metadata",)),
}


def timed(spent: dict[str, int], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that adds its processor time to ``spent[name]``."""

    def run(*arguments: Any, **settings: Any) -> Any:
        begin = thread_time_ns()
        try:
            return function(*arguments, **settings)
        finally:
            spent[name] += thread_time_ns() - begin

    return run


def main() -> None:
    """Print microseconds a step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--steps", type=int, default=48)
    given = parser.parse_args()
    llm = make_llm(
        models.build("qwen3_next", BUILD), max_num_seqs=given.requests, async_scheduling=False
    )
    runner: Any = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    groups = len(runner.kv_cache_config.kv_cache_groups)
    spent: dict[str, int] = defaultdict(int)
    for name, (owner, functions) in TIMED.items():
        for function in functions:
            setattr(owner, function, timed(spent, name, getattr(owner, function)))

    def serve(tokens: int) -> None:
        prompts = [TokensPrompt(prompt_token_ids=[i % 200, 7, 9]) for i in range(given.requests)]
        parameters = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0)
        llm.generate(prompts, parameters, use_tqdm=False)

    serve(8)
    before = dict(spent)
    serve(8 + given.steps)
    middle = dict(spent)
    serve(8)
    # A run of 8 tokens less: prefills and the first steps cancel out.
    short = {name: spent[name] - middle[name] for name in TIMED}
    a_step = {name: (middle[name] - before[name] - short[name]) / given.steps for name in TIMED}
    print(f"{groups} groups, {given.requests} requests, level {os.environ.get('HYBRID_BLOCKS')}")
    print("\n| part | us a step | share |\n|---|---|---|")
    for name, nanoseconds in a_step.items():
        print(f"| {name} | {nanoseconds / 1e3:,.0f} | {nanoseconds / a_step[STEP]:.1%} |")


if __name__ == "__main__":
    main()
