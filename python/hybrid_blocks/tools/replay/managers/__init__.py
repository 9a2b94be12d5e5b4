"""The managers that a trace can be replayed through."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.tools.plan import Deployment, plan_vllm
from hybrid_blocks.tools.plan.vllm import align
from hybrid_blocks.tools.replay.cache import Cache
from hybrid_blocks.tools.replay.config import EngineConfig, ReplayError
from hybrid_blocks.tools.replay.manager import ReplayManager
from hybrid_blocks.tools.replay.managers.filmed import FilmedManager
from hybrid_blocks.tools.replay.managers.rust import RustManager, RustOptions, make_rust

if TYPE_CHECKING:
    from hybrid_blocks.tools.replay.managers.vllm_adapter import VllmReplayAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """vLLM's settings that change what can be hit.

    Attributes:
        retention: ``--prefix-cache-retention-interval``: 0 keeps the states and windows that
            requests are known to resume at, vLLM's default; a number of tokens keeps more; None
            keeps all.
        match_unit: ``--prefix-match-unit``: tokens that divide a hit; None as vLLM chooses.
        block_size: ``--block-size``; None as vLLM chooses.
        spare_calls: leave out calls of decode steps that would change nothing.
    """

    retention: int | None = 0
    match_unit: int | None = None
    block_size: int | None = None
    spare_calls: bool = True


_UNITS: Final = (64, 16)
"""Tokens at which kernels can write states."""
_INTERVAL: Final = 4096


def vllm_settings(model: Model, deployment: Deployment) -> list[VllmOptions]:
    """Return the settings among which vLLM's best for a load is, its default first.

    A unit divides a block of the model, and is smaller.
    """
    planned = msgspec.structs.replace(deployment, block_size=None)
    block = align.block_size(model, planned.rank(model), planned)
    units = [unit for unit in _UNITS if block > unit and block % unit == 0]
    found = [
        VllmOptions(retention=kept, match_unit=unit)
        for unit in (None, *units)
        for kept in (0, None)
    ]
    return [*found, VllmOptions(retention=_INTERVAL)]


def make_vllm(cache: Cache, config: EngineConfig, options: VllmOptions) -> "VllmReplayAdapter":
    """Make vLLM's manager; the blocks of the cache's deployment are not vLLM's."""
    if cache.model is None or cache.deployment is None:
        raise ReplayError("the vllm manager plans its own blocks: give --model and --memory")
    try:
        from hybrid_blocks.tools.replay.managers.vllm_adapter import VllmReplayAdapter  # noqa: PLC0415
    except ImportError as error:
        raise ReplayError(f"--manager vllm needs vLLM 0.33: {error}") from error
    deployment = msgspec.structs.replace(cache.deployment, block_size=options.block_size)
    try:
        plan = plan_vllm(cache.model, cache.memory_bytes, deployment)
    except PlanError as error:
        raise ReplayError(str(error)) from error
    return VllmReplayAdapter(
        plan,
        deployment,
        config,
        retention=options.retention,
        match_unit=options.match_unit,
        spare_calls=options.spare_calls,
    )


class ManagerName(StrEnum):
    """The names of managers on the command line."""

    RUST = "rust"
    VLLM = "vllm"


def make_manager(
    name: ManagerName,
    cache: Cache,
    config: EngineConfig,
    *,
    rust: RustOptions | None = None,
    vllm: VllmOptions | None = None,
) -> ReplayManager:
    """Make an empty manager for a cache.

    Raises:
        ReplayError: the manager cannot serve this cache, or is not installed.
    """
    match name:
        case ManagerName.RUST:
            options = rust or RustOptions()
            if options.host_bytes:
                from hybrid_blocks.tools.replay.hosted import HostedManager  # noqa: PLC0415 - not in every build

                return make_rust(cache, config, options, HostedManager)
            kind = FilmedManager if options.with_film else RustManager
            return make_rust(cache, config, options, kind)
        case ManagerName.VLLM:
            return make_vllm(cache, config, vllm or VllmOptions())


__all__ = ["ManagerName", "RustOptions", "VllmOptions", "make_manager", "vllm_settings"]
