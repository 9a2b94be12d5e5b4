"""Which level and which scheduler an engine reaches. The plugin's own rules are asked."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from hybrid_blocks.model import Model
from hybrid_blocks.reasons import sentence
from hybrid_blocks.tools.doctor.engine import Engine
from hybrid_blocks.tools.doctor.environment import MODEL_RUNNER, environment
from hybrid_blocks.tools.doctor.features import Features
from hybrid_blocks.tools.doctor.probe import Probe, probed
from hybrid_blocks.vllm import install
from hybrid_blocks.vllm.level import VARIABLE, Level, grant, scheduler_grant
from hybrid_blocks.vllm.manager.kv_cache_manager import KVCacheManager
from hybrid_blocks.vllm.natural import refusal
from hybrid_blocks.vllm.scheduler import batching

ONE_CALL = "one call"
VLLMS = "vLLM's own"


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """The level that an engine reaches: ``natural`` or, if that is refused, the one below it.

    ``manager_level`` is what level ``manager``, the default, comes to.
    """

    level: Level
    why_not_natural: str | None
    manager_level: Level
    why_not_manager: str | None
    why_not_one_call: str | None

    @property
    def is_one_call(self) -> bool:
        """Return whether this package schedules decoding requests, unless a variable forbids it."""
        return self.why_not_one_call is None

    @property
    def scheduler(self) -> str:
        """Return which code schedules decoding requests."""
        return ONE_CALL if self.is_one_call else VLLMS


def reach(model: Model, features: Features) -> Reach:
    """Construct the engine and return how far it gets on a GPU.

    Raises ``PlanError`` where vLLM itself refuses the engine.
    """
    with at_level(Level.MANAGER):
        engine = Engine(model, features)
        probe = probed(engine)
        manager = probe.scheduler.kv_cache_manager
        level = Level(getattr(manager, "hybrid_blocks_level", Level.OFF))
        why_not_manager = None
        if level is not Level.MANAGER:
            why_not_manager = grant(Level.MANAGER).reason or _uncovered(engine, probe)
        natural = why_not_manager or grant(Level.NATURAL).reason
        natural = natural or refusal.reason(engine.asked, engine.specs)
        return Reach(
            level=level if natural else Level.NATURAL,
            why_not_natural=natural,
            manager_level=level,
            why_not_manager=why_not_manager,
            why_not_one_call=_one_by_one(probe),
        )


def _uncovered(engine: Engine, probe: Probe) -> str | None:
    native = KVCacheManager.native
    if native is None:
        return None
    return native.unsupported_reason(
        engine.kv_cache_config, metrics_collector=probe.scheduler.kv_metrics_collector
    )


def _one_by_one(probe: Probe) -> str | None:
    reason = scheduler_grant().reason or batching.unsupported_reason(probe.scheduler)
    if reason is None and probe.num_left:
        return sentence("outputs_left")
    return reason


@contextmanager
def at_level(level: Level) -> Iterator[None]:
    """Run at a level, with vLLM's second model runner as on a GPU, and then as before."""
    was_installed = install.is_installed() and KVCacheManager.native is not None
    with environment({VARIABLE: str(level), MODEL_RUNNER: "1"}):
        if not was_installed:
            install.install(level)
        try:
            yield
        finally:
            if not was_installed:
                install.uninstall()
