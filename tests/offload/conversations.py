"""Conversations on vLLM's CPU engine, offloaded or not.

A program of its own, as vLLM is set up once a process. ``test_engine.py`` starts it.
"""

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from program import answer_of, counted, make_llm
from server import environment

NUM_TURNS = 3
# As many looks at a folder, half a second apart, must find the same bytes.
NUM_QUIET = 4


@dataclass(frozen=True, kw_only=True)
class Result:
    """Answers and counts of a run.

    ``answers`` are tokens by turn and chat, ``cached`` the prompt tokens of each that were hit on
    the device or below it. ``metrics`` are vLLM's, by name. ``num_gathered`` and ``num_scattered``
    are blocks that this package's kernels copied to host memory and from it.
    """

    answers: list[list[int]]
    cached: list[int]
    prompts: list[int]
    metrics: dict[str, float]
    loads: dict[str, float]
    num_gathered: int
    num_scattered: int
    log: str


def run(
    model: Path,
    *,
    num_chats: int,
    num_blocks: int,
    offload: dict[str, Any] | list[dict[str, Any]] | None,
    first_turn: int = 0,
    level: str = "off",
    options: dict[str, Any] | None = None,
    variables: dict[str, str] | None = None,
    kill_once_quiet: Path | None = None,
) -> Result:
    """Hold ``num_chats`` conversations of three turns, turn by turn, from ``first_turn`` on.

    Several ``offload`` run below ``HybridMultiConnector``.
    ``level`` is that of the plugin for the device, ``options`` are those of ``LLM``, and
    ``variables`` go to the environment. The process kills itself after the last turn once nothing
    is written to the folder ``kill_once_quiet`` any more.

    Raises ``RuntimeError`` with the end of the log if the process fails.
    """
    task = {"model": str(model), "num_chats": num_chats, "num_blocks": num_blocks}
    task |= {"offload": offload, "first_turn": first_turn, "options": options or {}}
    task |= {"folder": kill_once_quiet and str(kill_once_quiet)}
    ends_with = -signal.SIGKILL if kill_once_quiet else 0
    answer = answer_of(__file__, task, environment(level) | (variables or {}), ends_with=ends_with)
    return Result(**answer)


def _connector(offload: dict[str, Any]) -> dict[str, Any]:
    named = {"kv_connector": "OffloadingConnector"}
    if "store" in offload:
        named = {
            "kv_connector": "HybridOffloadingConnector",
            "kv_connector_module_path": "hybrid_blocks.offload.connector",
        }
    return {**named, "kv_role": "kv_both", "kv_connector_extra_config": offload}


def _main(task: dict[str, Any]) -> None:
    from traffic import PREFIX, encode  # noqa: PLC0415 - in the child only
    from vllm import SamplingParams  # noqa: PLC0415
    from vllm.inputs import TokensPrompt  # noqa: PLC0415

    model = Path(task["model"])
    options: dict[str, Any] = task["options"]
    if "speculative_config" in options:
        import state_columns  # noqa: PLC0415 - as above

        state_columns.install()
    if isinstance(task["offload"], list):
        options["kv_transfer_config"] = {
            "kv_connector": "HybridMultiConnector",
            "kv_connector_module_path": "hybrid_blocks.offload.multi",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"connectors": list(map(_connector, task["offload"]))},
        }
    elif task["offload"] is not None:
        options["kv_transfer_config"] = _connector(task["offload"])
    gathered, scattered = (
        counted("gather_scatter", f"{direction}_blocks") for direction in ("gather", "scatter")
    )
    llm = make_llm(model, max_num_seqs=2, num_gpu_blocks_override=task["num_blocks"], **options)
    parameters = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    answers: list[list[int]] = []
    cached: list[int] = []
    prompts: list[int] = []
    for turn in range(task["first_turn"], NUM_TURNS):
        for chat in range(task["num_chats"]):
            # A chat's text does not depend on the answers, so that a run may begin at any turn.
            text = f"Chat {chat}. " + PREFIX[chat * 40 : chat * 40 + 300] + PREFIX[:240] * turn
            tokens = encode(text)
            (output,) = llm.generate(
                [TokensPrompt(prompt_token_ids=tokens)], parameters, use_tqdm=False
            )
            answers.append(list(output.outputs[0].token_ids))
            cached.append(output.num_cached_tokens or 0)
            prompts.append(len(tokens))
    report = {
        "answers": answers,
        "cached": cached,
        "prompts": prompts,
        "metrics": {it.name: it.value for it in llm.get_metrics() if hasattr(it, "value")},
        "loads": _loads_by_connector(),
        "num_gathered": sum(gathered),
        "num_scattered": sum(scattered),
    }
    print(json.dumps(report), flush=True)
    if task["folder"] is not None:
        _wait_until_quiet(llm, Path(task["folder"]))
        os.kill(os.getpid(), signal.SIGKILL)
    llm.llm_engine.engine_core.shutdown()


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
    from vllm import SamplingParams  # noqa: PLC0415 - in the child only
    from vllm.inputs import TokensPrompt  # noqa: PLC0415

    sizes = [0]
    while len(sizes) < NUM_QUIET or len(set(sizes[-NUM_QUIET:])) > 1 or not sizes[-1]:
        prompt = TokensPrompt(prompt_token_ids=[1])
        llm.generate([prompt], SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
        time.sleep(0.5)
        sizes.append(sum(it.stat().st_size for it in folder.rglob("*") if it.is_file()))


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
