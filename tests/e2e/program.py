"""Programs that set vLLM up in a process of their own and answer on their last line."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from server import KV_CACHE_BYTES

_TESTS = Path(__file__).parents[1]


def is_scheduled_in_one_call(log: str) -> bool:
    """Whether an engine with that log takes the steps of decoding requests in one call."""
    return "hybrid_blocks: decoding requests are scheduled in one call" in log


def make_llm(model: Path | str, **options: Any) -> Any:
    """Return vLLM's ``LLM`` over a small model, with the options of its own kind."""
    from vllm import LLM  # noqa: PLC0415 - vLLM is imported in the child only

    if "dtype" not in options:
        options["dtype"] = json.loads(Path(model, "config.json").read_text())["dtype"]
    sizes = {"max_model_len": 1024, "kv_cache_memory_bytes": KV_CACHE_BYTES}
    options = {**sizes, "enable_prefix_caching": True, **options}
    return LLM(model=str(model), enforce_eager=True, disable_log_stats=False, **options)


def counted(operation: str, name: str) -> list[int]:
    """Return a list that grows with each call of a kernel's reference, by its number of blocks."""
    naive: Any = import_module(f"hybrid_blocks.kernels.{operation}.naive")
    function, seen = getattr(naive, name), list[int]()

    def counts(queue: Any, group: Any, blocks: Any, *more: Any) -> None:
        seen.append(len(blocks))
        function(queue, group, blocks, *more)

    setattr(naive, name, counts)
    return seen


def answer_of(
    program: str, task: object, variables: Mapping[str, str], *, ends_with: int = 0
) -> dict[str, Any]:
    """Run a program with a task in JSON; return what it answers, and its output as ``log``.

    The answer is the line of JSON that begins with ``answers``. Raises ``RuntimeError`` with the
    end of the log if the process ends with another code than ``ends_with``.
    """
    own = (_TESTS, _TESTS / "e2e", _TESTS / "vllm")
    folders = [*map(str, own), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", program, json.dumps(task)],
        env={
            **variables,
            "PYTHONPATH": os.pathsep.join(filter(None, folders)),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    log = done.stdout + done.stderr
    if done.returncode != ends_with:
        raise RuntimeError(f"the engine failed:\n{log[-6000:]}")
    answer = next(line for line in done.stdout.splitlines() if line.startswith('{"answers"'))
    return {**json.loads(answer), "log": log}
