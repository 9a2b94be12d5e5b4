"""Answers of vLLM's ``LLM`` to requests of many sorts, all sent at once.

A program of its own, as vLLM is set up once a process. ``test_features.py`` starts it.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from program import answer_of, make_llm
from server import environment

Answer = dict[str, Any]
"""``tokens`` by sample, ``text`` of the first, ``likeliest`` and ``prompt_likeliest`` tokens with
their log probabilities where they were asked for."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Answers of a run, request by request, and its counts.

    ``cached`` are prompt tokens that were hit, ``began`` the times of first tokens in seconds.
    """

    answers: list[Answer]
    cached: list[int]
    began: list[float]
    metrics: dict[str, float]
    is_idle_clean: bool
    log: str


def run(
    model: Path,
    level: str,
    requests: list[dict[str, Any]],
    options: dict[str, Any],
) -> Result:
    """Answer requests at a plugin level, in a process of their own, with the check on.

    A request has ``text`` and ``sampling``; it may have ``schema``, ``adapter`` and ``priority``.
    Raises ``RuntimeError`` with the end of the log if the process fails.
    """
    task = {"model": str(model), "requests": requests, "options": options}
    return Result(**answer_of(__file__, task, environment(level) | {"HYBRID_BLOCKS_CHECK": "1"}))


def _main(task: dict[str, Any]) -> None:
    import state_columns  # noqa: PLC0415 - vLLM is imported in the child only
    from traffic import encode  # noqa: PLC0415
    from vllm import SamplingParams  # noqa: PLC0415
    from vllm.inputs import TokensPrompt  # noqa: PLC0415
    from vllm.lora.request import LoRARequest  # noqa: PLC0415
    from vllm.sampling_params import StructuredOutputsParams  # noqa: PLC0415

    model = Path(task["model"])
    if "speculative_config" in task["options"]:
        state_columns.install()
    options = {"max_num_batched_tokens": 256, "max_num_seqs": 32} | task["options"]
    llm = make_llm(model, **options)

    def sampling(request: dict[str, Any]) -> SamplingParams:
        extra: dict[str, Any] = {}
        if schema := request.get("schema"):
            extra["structured_outputs"] = StructuredOutputsParams(json=schema)
        return SamplingParams(**request["sampling"], **extra)

    def adapter(request: dict[str, Any]) -> LoRARequest | None:
        path = request.get("adapter")
        return path and LoRARequest(path, 1 + adapters.index(path), path)

    requests = task["requests"]
    adapters = sorted({path for request in requests if (path := request.get("adapter"))})
    extra: dict[str, Any] = {}
    if adapters:
        extra["lora_request"] = [adapter(request) for request in requests]
    if options.get("scheduling_policy") == "priority":
        extra["priority"] = [request.get("priority", 0) for request in requests]
    outputs = llm.generate(
        [TokensPrompt(prompt_token_ids=encode(request["text"])) for request in requests],
        [sampling(request) for request in requests],
        use_tqdm=False,
        **extra,
    )

    def likeliest(places: Any) -> Any:
        return places and [
            place and {token: entry.logprob for token, entry in place.items()} for place in places
        ]

    report = {
        "answers": [
            {
                "tokens": [list(sample.token_ids) for sample in output.outputs],
                "text": output.outputs[0].text,
                "likeliest": likeliest(output.outputs[0].logprobs),
                "prompt_likeliest": likeliest(output.prompt_logprobs),
            }
            for output in outputs
        ],
        "cached": [output.num_cached_tokens or 0 for output in outputs],
        "began": [output.metrics.first_token_ts for output in outputs],
        "metrics": {it.name: it.value for it in llm.get_metrics() if hasattr(it, "value")},
        "is_idle_clean": llm.reset_prefix_cache(),
    }
    print(json.dumps(report), flush=True)
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
