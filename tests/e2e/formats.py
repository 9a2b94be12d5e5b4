"""vLLM's ``LLM`` in one process, one engine after another: checkpoints of each format.

A program of its own, as vLLM is set up once a process. ``test_formats.py`` starts it.
"""

import gc
import json
import os
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from program import answer_of, make_llm
from server import environment

NUM_SLABS = 64
"""Few enough to be poisoned quickly."""


@dataclass(frozen=True)
class Answers:
    """Answers and counts of an engine, as `offline.Result` has them.

    ``logprobs`` are those of the tokens, ``num_conversions`` the copies between formats.
    """

    tokens: list[list[int]]
    logprobs: list[list[float]]
    cached: list[int]
    num_conversions: int
    num_poisoned: int
    is_idle_clean: bool


def run(model: Path, formats: list[str]) -> tuple[dict[str, Answers], str]:
    """Answer the same prompts with an engine of each format; return the log too."""
    task = {"model": str(model), "formats": formats}
    variables = environment("natural") | {"HYBRID_BLOCKS_CHECK": "1"}
    found = answer_of(__file__, task, variables)
    return {name: Answers(**told) for name, told in found["answers"].items()}, found["log"]


def _main(task: dict[str, Any]) -> None:
    import torch  # noqa: PLC0415 - vLLM is imported in the child only
    from vllm.distributed import cleanup_dist_env_and_memory  # noqa: PLC0415

    block_copies: Any = import_module("hybrid_blocks.vllm.worker.block_copies")
    convert, seen = block_copies.convert, list[int]()

    def counted(caches: Any, copies: Any) -> None:
        seen.append(len(copies))
        convert(caches, copies)

    block_copies.convert = counted
    answers = {}
    for name in task["formats"]:
        os.environ["HYBRID_BLOCKS_CHECKPOINTS"] = f"learned/format={name}"
        seen.clear()
        torch.manual_seed(0)
        answers[name] = _serve(Path(task["model"])) | {"num_conversions": sum(seen)}
        gc.collect()
        cleanup_dist_env_and_memory()
    print(json.dumps({"answers": answers}), flush=True)


def _serve(model: Path) -> dict[str, Any]:
    from poison import Poison  # noqa: PLC0415 - vLLM is imported in the child only
    from traffic import PREFIX, encode  # noqa: PLC0415
    from vllm import SamplingParams  # noqa: PLC0415
    from vllm.inputs import TokensPrompt  # noqa: PLC0415

    llm = make_llm(model, max_num_batched_tokens=256, num_gpu_blocks_override=NUM_SLABS)
    poison = Poison(llm)
    tokens, logprobs, cached = [], [], []
    questions = [f"{PREFIX} Question {number}: what is {number * 7}?" for number in range(4)]
    stories = [f"Story {number}. {PREFIX[number : number + 200]}" for number in range(6)]
    for texts in ([questions[0]], [questions[0]], questions, stories, questions + stories):
        outputs = llm.generate(
            [TokensPrompt(prompt_token_ids=encode(text)) for text in texts],
            SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=0),
            use_tqdm=False,
        )
        for output in outputs:
            (answer,) = output.outputs
            tokens.append(list(answer.token_ids))
            logprobs.append([next(iter(at.values())).logprob for at in answer.logprobs or ()])
            cached.append(output.num_cached_tokens or 0)
    return {
        "tokens": tokens,
        "logprobs": logprobs,
        "cached": cached,
        "num_poisoned": poison.num_poisoned,
        "is_idle_clean": llm.reset_prefix_cache(),
    }


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
