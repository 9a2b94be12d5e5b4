"""Engines that serve a model by its name on a hub, one after another in one process.

A program of its own, as vLLM is set up once a process. ``test_moved_model.py`` starts it.
"""

import gc
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from program import answer_of
from server import KV_CACHE_BYTES, environment

NUM_TOKENS = 331
BLOCK_TOKENS = 32


@dataclass(frozen=True)
class Answer:
    """The tokens of an answer, and how many of its prompt's an engine found."""

    tokens: list[int]
    cached: int


def run(
    name: str, offloads: Sequence[dict[str, Any] | None], variables: Mapping[str, str]
) -> list[Answer]:
    """Answer one prompt with an engine for each offload, or without."""
    task = {"model": name, "offloads": offloads}
    found = answer_of(__file__, task, {**environment("natural"), **variables})
    return [Answer(**it) for it in found["answers"]]


def _main(task: dict[str, Any]) -> None:
    from vllm.distributed import cleanup_dist_env_and_memory  # noqa: PLC0415 - in the child only

    answers = []
    for offload in task["offloads"]:
        answers.append(_serve(task["model"], offload))
        gc.collect()
        cleanup_dist_env_and_memory()
    print(json.dumps({"answers": answers}), flush=True)


def _serve(model: str, offload: dict[str, Any] | None) -> dict[str, Any]:
    from traffic import PREFIX, encode  # noqa: PLC0415 - in the child only
    from vllm import LLM, SamplingParams  # noqa: PLC0415
    from vllm.inputs import TokensPrompt  # noqa: PLC0415

    connector = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": offload,
    }
    llm = LLM(
        model=model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        block_size=BLOCK_TOKENS,
        kv_cache_memory_bytes=KV_CACHE_BYTES,
        enable_prefix_caching=True,
        kv_transfer_config=connector if offload else None,
    )
    parameters = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    # A request is written to the tiers below in the steps after its last one.
    output, _ = (
        llm.generate([TokensPrompt(prompt_token_ids=tokens)], parameters, use_tqdm=False)[0]
        for tokens in (encode(PREFIX * 2)[:NUM_TOKENS], [1])
    )
    llm.llm_engine.engine_core.shutdown()
    return {"tokens": list(output.outputs[0].token_ids), "cached": output.num_cached_tokens or 0}


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
