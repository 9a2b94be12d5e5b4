"""Answers of vLLM's ``LLM`` to prompts with images, round by round.

A program of its own, as vLLM is set up once a process. ``test_images.py`` starts it.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from program import answer_of, make_llm
from server import environment

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
Prompt = tuple[str, list[int]]
"""A text, and the images where it says `IMAGE`: equal numbers are equal images."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Greedy tokens and prompt tokens that were hit, by round and prompt.

    ``again`` are the tokens of the same rounds over an empty cache.
    """

    answers: list[list[list[int]]]
    again: list[list[list[int]]]
    cached: list[list[int]]
    is_idle_clean: bool
    log: str


def run(model: Path, level: str, rounds: list[list[Prompt]], options: dict[str, Any]) -> Result:
    """Answer the prompts of each round at once, at a plugin level, with the check on.

    Raises ``RuntimeError`` with the end of the log if the process fails.
    """
    task = {"model": str(model), "rounds": rounds, "options": options}
    return Result(**answer_of(__file__, task, environment(level) | {"HYBRID_BLOCKS_CHECK": "1"}))


def _main(task: dict[str, Any]) -> None:
    import numpy as np  # noqa: PLC0415 - vLLM is imported in the child only
    from PIL import Image  # noqa: PLC0415
    from vllm import SamplingParams  # noqa: PLC0415
    from vllm.inputs import TextPrompt  # noqa: PLC0415

    options = {"max_num_batched_tokens": 256, "max_num_seqs": 4} | task["options"]
    llm = make_llm(Path(task["model"]), limit_mm_per_prompt={"image": 2, "video": 0}, **options)

    def image(number: int) -> Image.Image:
        return Image.fromarray(
            np.random.default_rng(number).integers(0, 256, (64, 96, 3), dtype=np.uint8)
        )

    def prompt(text: str, images: list[int]) -> TextPrompt:
        if not images:
            return TextPrompt(prompt=text)
        return TextPrompt(
            prompt=text, multi_modal_data={"image": [image(number) for number in images]}
        )

    def ask_all() -> list[list[Any]]:
        return [
            llm.generate(
                [prompt(text, images) for text, images in prompts],
                SamplingParams(temperature=0, max_tokens=16, ignore_eos=True),
                use_tqdm=False,
            )
            for prompts in task["rounds"]
        ]

    def tokens(outputs: list[list[Any]]) -> list[list[list[int]]]:
        return [[list(output.outputs[0].token_ids) for output in one] for one in outputs]

    outputs = ask_all()
    is_idle_clean = llm.reset_prefix_cache()
    report = {
        "answers": tokens(outputs),
        "again": tokens(ask_all()),
        "cached": [[output.num_cached_tokens or 0 for output in one] for one in outputs],
        "is_idle_clean": is_idle_clean and llm.reset_prefix_cache(),
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
