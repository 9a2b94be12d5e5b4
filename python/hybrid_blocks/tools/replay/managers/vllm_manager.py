"""vLLM's own KV-cache manager, over the plan that vLLM makes for the same bytes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from hybrid_blocks.model import PlanError
from hybrid_blocks.tools.plan import plan_vllm
from hybrid_blocks.tools.replay.cache import Cache
from hybrid_blocks.tools.replay.config import EngineConfig
from hybrid_blocks.tools.replay.errors import ReplayError

if TYPE_CHECKING:
    from hybrid_blocks.tools.replay.managers.vllm_adapter import VllmReplayAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """vLLM's settings that change what can be hit.

    Attributes:
        retention: ``--prefix-cache-retention-interval``: 0 keeps the states and windows that
            requests are known to resume at, vLLM's default; a number of tokens keeps more; None
            keeps all.
        spare_calls: leave out calls of decode steps that would change nothing.
    """

    retention: int | None = 0
    spare_calls: bool = True


def make_vllm(cache: Cache, config: EngineConfig, options: VllmOptions) -> "VllmReplayAdapter":
    """Make vLLM's manager; its blocks are those that vLLM chooses, whatever ``--block-size`` is."""
    if cache.model is None or cache.deployment is None:
        raise ReplayError("the vllm manager plans its own blocks: give --model and --memory")
    try:
        from hybrid_blocks.tools.replay.managers.vllm_adapter import VllmReplayAdapter  # noqa: PLC0415
    except ImportError as error:
        raise ReplayError(f"--manager vllm needs vLLM 0.33: {error}") from error
    deployment = msgspec.structs.replace(cache.deployment, block_size=None)
    try:
        plan = plan_vllm(cache.model, cache.memory_bytes, deployment)
    except PlanError as error:
        raise ReplayError(str(error)) from error
    return VllmReplayAdapter(
        plan,
        deployment,
        config,
        retention=options.retention,
        spare_calls=options.spare_calls,
    )
