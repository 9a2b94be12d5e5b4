"""vLLM's scheduler over what vLLM itself plans for a model: stock, and at level ``natural``.

No weights and no GPU: outputs are prescribed, not computed.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from math import gcd
from typing import Any
from unittest.mock import patch

import _test_folders  # noqa: F401
from hybrid_blocks.arithmetic import round_up
from hybrid_blocks.geometry.step_time import step_tokens
from hybrid_blocks.model import Model
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.plan.vllm import align
from hybrid_blocks.tools.profile.engine import make_hasher, scheduler_over
from hybrid_blocks.tools.replay.managers import vllm_settings
from hybrid_blocks.vllm import install, releases
from hybrid_blocks.vllm.level import CHECKPOINTS, VARIABLE, Level
from hybrid_blocks.vllm.natural import prefill_checkpoints
from hybrid_blocks.vllm.scheduler import one_call
from natural.engine import Engine
from natural.served import Served
from plan_oracle import Oracle, draft_method
from vllm.config import VllmConfig
from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig


class Side(StrEnum):
    """Whose plan and whose manager run."""

    STOCK = "stock"
    NATURAL = "natural"


ACCEPTANCE = 0.7
"""Share of drafts that are right."""


@dataclass(frozen=True)
class Case:
    """A model in ``memory_bytes`` that runs at most ``num_requests`` requests.

    ``retention`` is vLLM's ``--prefix-cache-retention-interval`` and ``match_unit`` its
    ``--prefix-match-unit``, both of the stock side alone. At level ``natural`` states are left
    ``inside`` chunks of prompts, as by workers on a card, or chunks end there.

    ``junctions`` is ``--enable-mamba-shared-prefix-checkpoint``, which takes effect with a match
    unit and drafts of a head. A deployment with speculative tokens drafts, by the model's head or
    by n-grams, and `ACCEPTANCE` of the drafts are right.

    A ``fast`` case runs the one-call scheduler, and stock vLLM's side at level ``manager``. Their
    decisions are those of vLLM's own code.
    """

    model: Model
    memory_bytes: int
    deployment: Deployment
    num_requests: int
    retention: int | None = 0
    match_unit: int | None = None
    junctions: bool = False
    inside: bool = False
    fast: bool = False

    def settings(self) -> "Iterator[Case]":
        """Yield this case with each of the settings that vLLM takes for the model."""
        block = align.block_size(self.model, self.deployment.rank(self.model), self.deployment)
        for one in vllm_settings(self.model, self.deployment):
            kept = one.retention and round_up(one.retention, block)
            found = replace(self, match_unit=one.match_unit, retention=kept)
            yield found
            if found.match_unit and self.drafter == "mtp":
                yield replace(found, junctions=True)

    @property
    def drafter(self) -> str | None:
        """The method of drafts, if there are any."""
        return draft_method(self.model) if self.deployment.num_speculative_tokens else None


@contextmanager
def serving(side: Side, case: Case) -> Iterator[Served]:
    """Plan a model with vLLM's own functions, and make its scheduler."""
    stock = Level.MANAGER if case.fast else Level.OFF
    with _level(Level.NATURAL if side is Side.NATURAL else stock, case):
        config = _plan(side, case)
        sizes = [group.kv_cache_spec.block_size for group in config.kv_cache_groups]
        unit = case.match_unit if side is Side.STOCK and case.match_unit else gcd(*sizes)
        length = case.deployment.length(case.model)
        scheduler = scheduler_over(
            config,
            num_requests=case.num_requests,
            max_model_len=length,
            max_num_batched_tokens=case.deployment.max_num_batched_tokens,
            hash_block_size=unit,
            scheduler_cls=one_call.Scheduler if case.fast else Scheduler,
            num_draft_tokens=case.deployment.num_speculative_tokens,
            draft_method="eagle" if case.drafter == "mtp" else "ngram",
            configure=partial(_configure, side, case),
        )
        _check(side, scheduler)
        lookahead = releases.installed.hasher_arguments(scheduler.num_hash_lookahead_tokens)
        acceptance = ACCEPTANCE if case.drafter else None
        yield Served(scheduler, config, make_hasher(unit, *lookahead), acceptance)


def _configure(side: Side, case: Case, config: VllmConfig) -> None:
    if side is Side.STOCK:
        config.cache_config.enable_mamba_shared_prefix_checkpoint = case.junctions


def _plan(side: Side, case: Case) -> KVCacheConfig:
    if side is Side.NATURAL:
        alignment = prefill_checkpoints.ANY_POSITION if case.inside else None
        with patch.object(prefill_checkpoints, "alignment", lambda *_: alignment):
            return Engine(case.model, case.deployment, case.memory_bytes).scheduler_config()
    oracle = Oracle(case.model, case.deployment, case.memory_bytes, case.match_unit)
    config: KVCacheConfig = generate_scheduler_kv_cache_config(oracle.configs)
    return replace(config, prefix_cache_retention_interval=case.retention)


class OtherLevelError(RuntimeError):
    """A model is refused at level ``natural``, on this platform at least."""


def _check(side: Side, scheduler: Any) -> None:
    level = getattr(scheduler.kv_cache_manager, "hybrid_blocks_level", Level.OFF)
    if (level is Level.NATURAL) is not (side is Side.NATURAL):
        raise OtherLevelError(f"the {side} side runs at level {level}")


@contextmanager
def _level(level: Level, case: Case) -> Iterator[None]:
    """Run at a level, as an engine on the card of the case does, and then as before."""
    price = f"learned/step_tokens={step_tokens(case.model, case.deployment)}"
    ours = {VARIABLE: str(level), CHECKPOINTS: os.environ.get(CHECKPOINTS, price)}
    with patch.dict(os.environ, ours):
        if level is not Level.OFF:
            install.install(level)
        try:
            yield
        finally:
            if level is not Level.OFF:
                install.uninstall()
