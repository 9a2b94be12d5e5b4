"""States that forwards of vLLM's CPU engine leave between two tokens, and those that end chunks.

A program of its own, as vLLM is set up once a process. ``test_prefill_checkpoints.py`` starts it.
"""

import gc
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from program import answer_of, make_llm
from server import environment

NUM_SLABS = 128
ANSWER_TOKENS = 24
CONVOLUTION = 2
"""Dimensions of a convolution's state; a recurrent state has three."""
NUM_INPUTS = 3
"""Inputs that a convolution looks back at; room for drafts lies behind them."""


@dataclass(frozen=True)
class Run:
    """Answers of an engine, and the states that its forwards left.

    ``tokens`` are the answers by prompt, and ``num_chunks`` the chunks of prompts. The first engine
    has ``num_states`` of the states of layers too, after as many tokens of the prompt, and
    ``num_equal`` have its bytes. ``farthest`` is the largest difference of a number, as a share of
    its tensor's largest.
    """

    tokens: list[list[int]]
    num_chunks: int
    num_states: int
    num_equal: int
    farthest: float


def run(
    model: Path, engines: list[dict[str, Any]], file: Path | None = None
) -> tuple[list[Run], str]:
    """Answer the same prompts with an engine after another; return the log too.

    An engine has ``places``, the positions of checkpoints. They leave its forwards if ``inside``,
    and else its chunks happen to end there. ``alone`` asks prompt by prompt, and ``options`` are
    those of ``LLM``. The states of the first engine stay in ``file``. If they are there already,
    all engines are compared with those.
    """
    task = {"model": str(model), "engines": engines, "file": str(file or "")}
    variables = environment("natural") | {"HYBRID_BLOCKS_CHECKPOINTS": "none"}
    found = answer_of(__file__, task, variables)
    return [Run(**one) for one in found["answers"]], found["log"]


def prompts() -> list[list[int]]:
    """Return token ids of three prompts, each longer than the one before."""
    return [[(7 * k + 13 * i * i + 3) % 250 for i in range(200 + 3 * k)] for k in range(3)]


class Watch:
    """Adds checkpoints to the steps of an engine, and digests the states that lie there."""

    def __init__(self, llm: Any, places: list[int], *, inside: bool) -> None:
        core = llm.llm_engine.engine_core.engine_core
        self._scheduler, self._places, self._inside = core.scheduler, places, inside
        self._layers = core.vllm_config.compilation_config.static_forward_context
        self._spare = NUM_SLABS
        self._left: list[tuple[str, int, int, int]] = []
        self.states: dict[str, list[Any]] = {}
        self.num_chunks = 0
        schedule = core.scheduler.schedule

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.read()
            output = schedule(*args, **kwargs)
            self._add(output)
            return output

        core.scheduler.schedule = watched

    def _add(self, output: Any) -> None:
        from hybrid_blocks.vllm.worker.prefill_checkpoint import PrefillCheckpoint  # noqa: PLC0415

        added = []
        for id_, count in output.num_scheduled_tokens.items():
            request = self._scheduler.requests[id_]
            end = request.num_computed_tokens
            self.num_chunks += end - count < request.num_prompt_tokens
            blocks = self._scheduler.kv_cache_manager.get_block_ids(id_)
            for group in self._groups():
                for place in self._places:
                    if end - count < place < end and self._inside:
                        self._spare -= 1
                        added.append(
                            PrefillCheckpoint(id_, group, place, blocks[group][0], self._spare)
                        )
                        self._left.append((id_, group, place, self._spare))
                    elif place == end and count > 1 and not self._inside:
                        self._left.append((id_, group, place, blocks[group][0]))
        output.kv_cache_block_copies = [*(output.kv_cache_block_copies or ()), *added] or None

    def _groups(self) -> Iterator[int]:
        from vllm.v1.kv_cache_interface import MambaSpec  # noqa: PLC0415

        for number, group in enumerate(self._scheduler.kv_cache_config.kv_cache_groups):
            if isinstance(group.kv_cache_spec, MambaSpec):
                yield number

    def read(self) -> None:
        """Take copies of the states that the last step left."""
        groups = self._scheduler.kv_cache_config.kv_cache_groups
        for id_, group, place, block in self._left:
            for name in groups[group].layer_names:
                key = f"{id_.partition('-')[0]} {place} {name}"
                tensors = self._layers[name].kv_cache
                found = [tensor[block] for tensor in tensors]
                inputs = (one[:NUM_INPUTS] if one.dim() == CONVOLUTION else one for one in found)
                self.states[key] = [one.clone() for one in inputs]
        self._left.clear()


def _main(task: dict[str, Any]) -> None:
    import torch  # noqa: PLC0415
    from vllm.distributed import cleanup_dist_env_and_memory  # noqa: PLC0415
    from vllm.platforms import current_platform  # noqa: PLC0415

    answers: list[dict[str, Any]] = []
    file = Path(task["file"]) if task["file"] else None
    first: dict[str, list[Any]] = torch.load(file) if file and file.exists() else {}
    for engine in task["engines"]:
        torch.manual_seed(0)
        watch, tokens = _serve(Path(task["model"]), **engine)
        if not first:
            first = watch.states
            if file:
                torch.save(first, file)
        pairs = [
            (one, other)
            for key, states in watch.states.items()
            if key in first
            for one, other in zip(states, first[key], strict=True)
        ]
        answers.append(
            {
                "tokens": tokens,
                "num_chunks": watch.num_chunks,
                "num_states": len(pairs),
                "num_equal": sum(torch.equal(one, other) for one, other in pairs),
                "farthest": max(
                    (float((one - other).abs().max() / other.abs().max()) for one, other in pairs),
                    default=0.0,
                ),
            }
        )
        # A second time, vLLM's CPU engine fails on the modules of drafters.
        current_platform.register_triton_kernel_overrides = lambda: None  # type: ignore[method-assign]
        gc.collect()
        cleanup_dist_env_and_memory()
    print(json.dumps({"answers": answers}), flush=True)


def _serve(
    model: Path, *, places: list[int], inside: bool, alone: bool, options: dict[str, Any]
) -> tuple[Watch, list[list[int]]]:
    import state_columns  # noqa: PLC0415
    from vllm import SamplingParams  # noqa: PLC0415
    from vllm.inputs import TokensPrompt  # noqa: PLC0415

    if "speculative_config" in options:
        state_columns.install()
    llm = make_llm(model, num_gpu_blocks_override=NUM_SLABS, **options)
    watch = Watch(llm, places, inside=inside)
    sampling = SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS, ignore_eos=True)
    asked = [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts()]
    tokens = []
    for some in [[one] for one in asked] if alone else [asked]:
        outputs = llm.generate(some, sampling, use_tqdm=False)
        tokens += [list(output.outputs[0].token_ids) for output in outputs]
    watch.read()
    return watch, tokens


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
