"""Keys, values and states that finished requests of vLLM's ``LLM`` leave in memory.

A program of its own, as vLLM is set up once a process. ``test_contents.py`` starts it.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from program import answer_of, make_llm
from server import environment


@dataclass(frozen=True, kw_only=True)
class Content:
    """Blocks that one request left when it finished.

    ``caches`` are its blocks by layer and position, in the order of tokens: a state layer has one,
    of attention those that the request still needs. ``num_cached`` prompt tokens were hit.
    """

    tokens: list[int]
    num_cached: int
    caches: dict[str, dict[int, list[torch.Tensor]]]


@dataclass(frozen=True, kw_only=True)
class Result:
    """Contents that a run left, request by request, and how its memory was cut."""

    contents: list[Content]
    block_size: int
    num_preemptions: int
    log: str


def run(
    model: Path, level: str, rounds: list[list[str]], *, num_tokens: int, **options: Any
) -> Result:
    """Answer ``rounds`` of texts, the texts of a round at once, with the options of ``LLM``.

    Every request computes ``num_tokens`` tokens: whole attention blocks, so that no byte of them
    is left unwritten. Raises ``RuntimeError`` with the end of the log if the process fails.
    """
    file = model / f"contents-{level}.pt"
    task = {"model": str(model), "rounds": rounds, "options": options, "file": str(file)}
    variables = environment(level) | {"HYBRID_BLOCKS_CHECK": "1"}
    answer = answer_of(__file__, task | {"num_tokens": num_tokens}, variables)
    answers = answer.pop("answers")
    caches = torch.load(file)
    file.unlink()
    contents = [Content(**one, caches=left) for one, left in zip(answers, caches, strict=True)]
    return Result(contents=contents, **answer)


def _main(task: dict[str, Any]) -> None:
    from poison import by_block  # noqa: PLC0415 - vLLM is imported in the child only
    from traffic import encode  # noqa: PLC0415
    from vllm import SamplingParams  # noqa: PLC0415
    from vllm.inputs import TokensPrompt  # noqa: PLC0415
    from vllm.v1.kv_cache_interface import MambaSpec  # noqa: PLC0415

    llm = make_llm(Path(task["model"]), **task["options"])
    core = llm.llm_engine.engine_core.engine_core
    manager, config = core.scheduler.kv_cache_manager, core.scheduler.kv_cache_config
    layers = core.vllm_config.compilation_config.static_forward_context
    groups = config.kv_cache_groups
    block_size = next(
        group.kv_cache_spec.block_size
        for group in groups
        if not isinstance(group.kv_cache_spec, MambaSpec)
    )
    left: dict[str, dict[str, dict[int, list[torch.Tensor]]]] = {}

    def note(request: Any) -> None:
        caches = left.setdefault(request.request_id, {})
        for number, ids in enumerate(manager.get_block_ids(request.request_id)):
            cut = config.blocks_per_slab_of(number) if hasattr(config, "pools") else 1
            for name in groups[number].layer_names:
                views = list(by_block(layers[name].kv_cache, config.num_blocks * cut))
                caches[name] = {
                    position: [view[block].clone() for view in views]
                    for position, block in enumerate(ids)
                    if block != 0
                }

    free = manager.free

    def noted_free(request: Any) -> None:
        if request.is_finished():
            note(request)
        free(request)

    manager.free = noted_free
    total = task["num_tokens"]
    if total % block_size:
        raise RuntimeError(f"{total} tokens are no whole blocks of {block_size}")
    answers, caches = [], []
    for texts in task["rounds"]:
        prompts = [encode(text) for text in texts]
        # The last token is sampled and never computed.
        sampling = [
            SamplingParams(temperature=0, max_tokens=total + 1 - len(prompt), ignore_eos=True)
            for prompt in prompts
        ]
        outputs = llm.generate(
            [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts], sampling, use_tqdm=False
        )
        answers += [
            {
                "tokens": list(output.outputs[0].token_ids),
                "num_cached": output.num_cached_tokens or 0,
            }
            for output in outputs
        ]
        # A request's id inside the engine begins with the one that its client knows.
        for output in outputs:
            (key,) = (it for it in left if it.partition("-")[0] == output.request_id)
            caches.append(left.pop(key))
    torch.save(caches, task["file"])
    counts = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    report = {
        "answers": answers,
        "block_size": block_size,
        "num_preemptions": counts["vllm:num_preemptions"],
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
