"""``hybrid-blocks plan -- vllm serve …``."""

from collections.abc import Sequence

from hybrid_blocks.cli.given import Given
from hybrid_blocks.cli.plan_case import Case
from hybrid_blocks.pasted.case import read_case

_OF_COMMAND = (
    *("tp", "pp", "kv_cache_dtype", "mamba_ssm_dtype", "max_model_len", "max_num_batched_tokens"),
    *("max_num_seqs", "num_speculative_tokens", "speculative", "mamba_cache_mode", "block_size"),
    "layers",
    *("in_flight_batches", "gpu_memory_utilization"),
)


def plan_of_command(
    words: Sequence[str],
    source: str | None,
    memory: str | None,
    gpu: str | None,
    given: Given,
) -> Case:
    """Return what a pasted command says: the model, the memory, the deployment and the card.

    Raises:
        PlanError: as `read_case`.
        InvalidArgumentError: options that the command itself gives.

    """
    given.refuse(*_OF_COMMAND, why="beside a pasted command: write it as vLLM's option there")
    case = read_case(words, source, memory, gpu)
    return Case(case.model, case.memory_bytes, case.deployment, case.card)
