"""Rounds of prompts that vLLM's ``LLM`` answers in a process of its own, as vLLM is set up once.

Tests start this program by `run`.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from program import answer_of, counted, make_llm
from server import environment

Prompt = dict[str, Any]
"""``text`` or ``tokens`` and ``sampling``; ``images``, ``schema``, ``adapter``, ``priority``."""
Round = list[Prompt] | None
"""Prompts that are sent at once, or a reset of the prefix cache."""
Answer = dict[str, Any]
"""``tokens`` by sample, ``text`` of the first, ``likeliest`` and ``prompt_likeliest`` tokens with
their log probabilities where they were asked for."""

NGRAMS: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 3}
NGRAMS |= {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
"""Drafts of n-grams, as ``speculative_config``."""
MTP: dict[str, Any] = {"method": "mtp", "num_speculative_tokens": 2}
"""Drafts of a model's own head."""

# As many looks at a folder, half a second apart, must find the same bytes.
_NUM_QUIET = 4


@dataclass(frozen=True, kw_only=True)
class Result:
    """Answers of a run, prompt by prompt, and its counts.

    ``cached`` are prompt tokens that were hit, ``began`` the times of first tokens in seconds.
    ``metrics`` are vLLM's by name, ``loads`` those that each connector of several did. ``counts``
    are blocks that kernels of this package ``copied``, ``gathered``, ``scattered`` and
    ``converted``, and those that were ``poisoned``.
    """

    answers: list[Answer]
    cached: list[int]
    began: list[float]
    metrics: dict[str, float]
    loads: dict[str, float]
    counts: dict[str, int]
    is_idle_clean: bool
    log: str

    @property
    def tokens(self) -> list[list[int]]:
        """Tokens of the first sample of each answer."""
        return [answer["tokens"][0] for answer in self.answers]


def prompt(text: str, **sampling: Any) -> Prompt:
    """Return a prompt for a greedy answer of 16 tokens; ``sampling`` changes that."""
    greedy = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}
    return {"text": text, "sampling": greedy | sampling}


def run(
    model: Path | str,
    level: str,
    rounds: Sequence[Round],
    options: dict[str, Any] | None = None,
    *,
    poison: bool = False,
    vllms_copies: bool = False,
    variables: dict[str, str] | None = None,
    kill_once_quiet: Path | None = None,
) -> Result:
    """Answer rounds with the options of ``LLM``, at a plugin level, with the check on.

    With ``poison``, all bytes that no request and no cached block holds are NaN before each step.
    With ``vllms_copies``, vLLM's own function copies blocks. ``variables`` go to the environment.
    The process kills itself once nothing is written to the folder ``kill_once_quiet`` any more.

    Raises ``RuntimeError`` with the end of the log if the process fails.
    """
    task: dict[str, Any] = {"model": str(model), "rounds": list(rounds)}
    task |= {"options": options or {}, "folder": str(kill_once_quiet or "")}
    task |= {"poison": poison, "vllms_copies": vllms_copies}
    environ = {**environment(level), "HYBRID_BLOCKS_CHECK": "1", **(variables or {})}
    ends_with = -signal.SIGKILL if kill_once_quiet else 0
    return Result(**answer_of(__file__, task, environ, ends_with=ends_with))


def assert_close(ours: Result, theirs: Result, within: float = 0.0) -> None:
    """Same tokens and text; log probabilities of the same tokens, as near as ``within``."""
    for mine, other in zip(ours.answers, theirs.answers, strict=True):
        assert mine["tokens"] == other["tokens"]
        assert mine["text"] == other["text"]
        for key in ("likeliest", "prompt_likeliest"):
            assert (mine[key] is None) == (other[key] is None)
            for place, at in zip(mine[key] or [], other[key] or [], strict=True):
                assert (place is None) == (at is None)
                for token, value in (place or {}).items():
                    assert abs(value - at[token]) <= within


def _main(task: dict[str, Any]) -> None:
    import state_columns  # noqa: PLC0415 - vLLM is imported in the child only
    from hybrid_blocks.vllm.swap import back, swap  # noqa: PLC0415
    from hybrid_blocks.vllm.worker import block_copies  # noqa: PLC0415
    from poison import Poison  # noqa: PLC0415

    if "speculative_config" in task["options"]:
        state_columns.install()
    llm = make_llm(task["model"], **task["options"])
    if task["vllms_copies"]:
        swap(back(block_copies.REPLACEMENTS))
    counts = {
        "copied": counted("copy_blocks", "copy_blocks"),
        "gathered": counted("gather_scatter", "gather_blocks"),
        "scattered": counted("gather_scatter", "scatter_blocks"),
        "converted": counted("convert_states", "convert_states"),
    }
    poison = Poison(llm) if task["poison"] else None
    outputs: list[Any] = []
    resets: list[bool] = []
    for prompts in task["rounds"]:
        if prompts is None:
            resets.append(llm.reset_prefix_cache())
        else:
            outputs += _answered(llm, prompts, task["options"])
    report = {
        "answers": list(map(_told, outputs)),
        "cached": [output.num_cached_tokens or 0 for output in outputs],
        "began": [output.metrics.first_token_ts for output in outputs],
        "metrics": {it.name: it.value for it in llm.get_metrics() if hasattr(it, "value")},
        "loads": _loads_by_connector(),
        "counts": {name: sum(seen) for name, seen in counts.items()}
        | {"poisoned": poison.num_poisoned if poison else 0},
        "is_idle_clean": all([*resets, bool(task["folder"]) or llm.reset_prefix_cache()]),
    }
    print(json.dumps(report), flush=True)
    if task["folder"]:
        _wait_until_quiet(llm, Path(task["folder"]))
        os.kill(os.getpid(), signal.SIGKILL)
    llm.llm_engine.engine_core.shutdown()


def _answered(llm: Any, prompts: list[Prompt], options: dict[str, Any]) -> list[Any]:
    from vllm import SamplingParams  # noqa: PLC0415 - in the child only
    from vllm.lora.request import LoRARequest  # noqa: PLC0415
    from vllm.sampling_params import StructuredOutputsParams  # noqa: PLC0415

    sampling = []
    for one in prompts:
        schema = one.get("schema") and StructuredOutputsParams(json=one["schema"])
        sampling.append(SamplingParams(**one["sampling"], structured_outputs=schema))
    adapters = sorted({one["adapter"] for one in prompts if "adapter" in one})
    extra: dict[str, Any] = {}
    if adapters:
        extra["lora_request"] = [
            (path := one.get("adapter")) and LoRARequest(path, 1 + adapters.index(path), path)
            for one in prompts
        ]
    if options.get("scheduling_policy") == "priority":
        extra["priority"] = [one.get("priority", 0) for one in prompts]
    found: list[Any] = llm.generate(list(map(_input, prompts)), sampling, use_tqdm=False, **extra)
    return found


def _input(one: Prompt) -> Any:
    from PIL import Image  # noqa: PLC0415 - in the child only
    from traffic import encode  # noqa: PLC0415
    from vllm.inputs import TextPrompt, TokensPrompt  # noqa: PLC0415

    def image(number: int) -> Any:
        """Equal numbers are equal images."""
        drawn = np.random.default_rng(number).integers(0, 256, (64, 96, 3), np.uint8)
        return Image.fromarray(drawn)

    if "images" not in one:
        return TokensPrompt(prompt_token_ids=one.get("tokens") or encode(one["text"]))
    if not one["images"]:
        return TextPrompt(prompt=one["text"])
    return TextPrompt(
        prompt=one["text"], multi_modal_data={"image": list(map(image, one["images"]))}
    )


def _told(output: Any) -> Answer:
    def likeliest(places: Any) -> Any:
        return places and [at and {token: it.logprob for token, it in at.items()} for at in places]

    return {
        "tokens": [list(sample.token_ids) for sample in output.outputs],
        "text": output.outputs[0].text,
        "likeliest": likeliest(output.outputs[0].logprobs),
        "prompt_likeliest": likeliest(output.prompt_logprobs),
    }


def _loads_by_connector() -> dict[str, float]:
    from prometheus_client import REGISTRY  # noqa: PLC0415 - in the child only

    samples = [sample for metric in REGISTRY.collect() for sample in metric.samples]
    return {
        sample.labels["connector"]: sample.value
        for sample in samples
        if sample.name == "hybrid_blocks_connector_loads_total"
    }


def _wait_until_quiet(llm: Any, folder: Path) -> None:
    """Run steps, in which transfers end and begin, until no file grows."""
    sizes = [0]
    while len(sizes) < _NUM_QUIET or len(set(sizes[-_NUM_QUIET:])) > 1 or not sizes[-1]:
        _answered(llm, [{"tokens": [1], "sampling": {"max_tokens": 4, "ignore_eos": True}}], {})
        time.sleep(0.5)
        sizes.append(sum(it.stat().st_size for it in folder.rglob("*") if it.is_file()))


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
