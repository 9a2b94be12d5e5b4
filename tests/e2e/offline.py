"""vLLM's ``LLM`` in one process: prompts in, greedy tokens out.

A program of its own, as vLLM is set up once a process. ``test_offline.py`` starts it.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from program import answer_of, counted, make_llm
from server import environment

STORY_TOKENS = 160


@dataclass(frozen=True, kw_only=True)
class Result:
    """Answers and counts of a run of the program.

    ``answers`` are tokens by prompt, ``cached`` the prompt tokens that were hit, ``num_drafts`` the
    draft tokens proposed and ``num_accepted`` those that were right. ``num_copies`` are the steps
    whose blocks this package's kernels copied.
    """

    answers: list[list[int]]
    cached: list[int]
    num_preemptions: int
    num_drafts: int
    num_accepted: int
    num_poisoned: int
    num_copies: int
    is_idle_clean: bool
    log: str


def run(
    model: Path,
    level: str,
    options: dict[str, Any],
    *,
    poison: bool = False,
    vllms_copies: bool = False,
    story_tokens: int = STORY_TOKENS,
) -> Result:
    """Answer all prompts with the options of ``LLM``, in a process at a plugin level.

    With ``poison``, all bytes that no request and no cached block holds are NaN before each step.
    With ``vllms_copies``, vLLM's own function copies blocks. The long answers have ``story_tokens``
    tokens.
    Raises ``RuntimeError`` with the end of the log if the process fails.
    """
    task: dict[str, Any] = {"model": str(model), "options": options}
    task |= {"poison": poison, "vllms_copies": vllms_copies, "story_tokens": story_tokens}
    return Result(**answer_of(__file__, task, environment(level) | {"HYBRID_BLOCKS_CHECK": "1"}))


def _main(task: dict[str, Any]) -> None:
    import state_columns  # noqa: PLC0415 - vLLM is imported in the child only
    from hybrid_blocks.vllm.worker import block_copies  # noqa: PLC0415
    from poison import Poison  # noqa: PLC0415
    from traffic import PREFIX, encode  # noqa: PLC0415
    from vllm import SamplingParams  # noqa: PLC0415
    from vllm.inputs import TokensPrompt  # noqa: PLC0415

    model = Path(task["model"])
    if "speculative_config" in task["options"]:
        state_columns.install()
    llm = make_llm(model, **task["options"])
    if task["vllms_copies"]:
        block_copies.uninstall()
    copies = counted("copy_blocks", "copy_blocks")
    poison = Poison(llm) if task["poison"] else None
    questions = [f"{PREFIX} Question {number}: what is {number * 7}?" for number in range(4)]
    stories = [f"Story {number}. {PREFIX[number : number + 200]}" for number in range(16)]
    answers: list[list[int]] = []
    cached: list[int] = []

    def ask(texts: list[str], max_tokens: int) -> None:
        outputs = llm.generate(
            [TokensPrompt(prompt_token_ids=encode(text)) for text in texts],
            SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True),
            use_tqdm=False,
        )
        answers.extend(list(output.outputs[0].token_ids) for output in outputs)
        cached.extend(output.num_cached_tokens or 0 for output in outputs)

    for text in questions * 2:
        ask([text], 16)
    ask(stories, task["story_tokens"])
    ask(questions + stories, 16)
    counts = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    report = {
        "answers": answers,
        "cached": cached,
        "num_preemptions": counts["vllm:num_preemptions"],
        "num_drafts": counts.get("vllm:spec_decode_num_draft_tokens", 0),
        "num_accepted": counts.get("vllm:spec_decode_num_accepted_tokens", 0),
        "num_poisoned": poison.num_poisoned if poison else 0,
        "num_copies": len(copies),
        "is_idle_clean": llm.reset_prefix_cache(),
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
