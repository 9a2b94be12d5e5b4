"""The options of ``replay``: what is compared over which memory, and what says nothing."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from hybrid_blocks import CheckpointPolicy
from hybrid_blocks.geometry.deployment import MOST
from hybrid_blocks.geometry.step_time import step_time
from hybrid_blocks.model import load_model
from hybrid_blocks.model.layer import RUNNING
from hybrid_blocks.tools.cli.options import Given, drafted, each_once
from hybrid_blocks.tools.cli.output import warn
from hybrid_blocks.tools.doctor.environment import allow_no_gpu, has_vllm, need_vllm
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.plan.memory import parse_cards
from hybrid_blocks.tools.plan.report.report import check_block_size
from hybrid_blocks.tools.replay import (
    Cache,
    EngineConfig,
    ManagerName,
    ReplayError,
    VllmOptions,
    block_cache,
    read_num_blocks,
)
from hybrid_blocks.tools.replay.cache import plan_cache, read_shares, share_text
from hybrid_blocks.tools.replay.config import Target
from hybrid_blocks.tools.replay.fit import fit
from hybrid_blocks.tools.replay.managers import vllm_settings
from hybrid_blocks.tools.replay.run import Variant, make_variants
from hybrid_blocks.tools.trace import SEATS, Trace
from hybrid_blocks.tools.trace.lines import LineReader
from hybrid_blocks.tools.trace.recorded import parse
from hybrid_blocks.units import parse_count, parse_memory

DEFAULT_MODEL = "Granite-4.0-Micro"


def check_options(
    given: Given, managers: Sequence[ManagerName], placements: Sequence[str], workload: str
) -> None:
    """Refuse options that would say nothing beside the others, or that need vLLM without it."""
    if "trace" in given:
        given.refuse("workload", "seed", "seats", why="beside TRACE, whose requests are replayed")
    else:
        if workload != SEATS:
            given.refuse("seats", why="without --workload seats, the only one that has seats")
        given.refuse("trace_format", why="without TRACE: a generated workload has no file")
    if "host" in given:
        given.refuse("num_blocks", why="beside --host: host memory takes a model's bytes")
    if "clock" in given:
        given.refuse("gpu", "share", "num_blocks", why="beside --clock, which times a model's card")
    else:
        given.refuse("slo", "rate", why="without --clock, whose times it is for")
    _check_memory(given)
    _check_managers(given, managers)
    _check_formats(given, placements)


def _check_memory(given: Given) -> None:
    """Refuse two sources of one memory."""
    if "num_blocks" in given:
        given.refuse(
            *("model", "memory", "tp", "kv_cache_dtype", "speculative"),
            *("share", "gpu"),
            why="beside --num-blocks, which stands for a model and its memory; leave one out",
        )
    if "share" in given:
        given.refuse("memory", why="beside --share, which says how much memory there is")
        given.refuse("html", "whole", why="beside --share, which compares hits alone")


def _check_managers(given: Given, managers: Sequence[ManagerName]) -> None:
    """Refuse options of a manager that does not run."""
    if ManagerName.VLLM not in managers:
        given.refuse("retention", "gpu", why="without --manager vllm, the only one that it is for")
    if ManagerName.RUST not in managers:
        given.refuse(
            *("placement", "signal", "host"),
            why="without --manager rust, the only one that it is for",
        )
    if ManagerName.VLLM in managers:
        need_vllm(", or leave out --manager vllm")


def _check_formats(given: Given, placements: Sequence[str]) -> None:
    """Refuse what does not show checkpoints in another format than running states."""
    if any(CheckpointPolicy(name).options["format"] != RUNNING for name in placements):
        given.refuse("num_blocks", why="beside a placement with a format: it has no states")


def default_managers(*, is_timed: bool) -> list[ManagerName]:
    """Return this project's manager, and where times are compared vLLM's beside it."""
    return [*([ManagerName.VLLM] if is_timed and has_vllm() else []), ManagerName.RUST]


def warn_of_defaults(given: Given, memory: str) -> None:
    """Warn of a model that was not asked for."""
    if not {"model", "num_blocks"} & given.all:
        warn(
            f"without --model this replays {DEFAULT_MODEL} in {memory}; give --model and --memory "
            "of your engine"
        )


BEST = "best"


def read_retention(text: str) -> int | str | None:
    """Return the tokens between states that vLLM keeps, None for all; `BEST` stays."""
    if text == "dense":
        return None
    if text == BEST:
        return text
    if not (text.isascii() and text.isdecimal()):
        raise ReplayError(f"--retention {text!r} is neither a number of tokens, dense nor best")
    return parse_count(text, "--retention", MOST, least=0)


DEFAULT_BLOCK_SIZE = 16


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Choices that a replay compares; ``shares`` are None where managers share one memory.

    ``host_bytes`` are 0 without host memory.
    """

    managers: Sequence[ManagerName]
    placements: Sequence[str]
    retention: int | str | None
    signal: float | None
    shares: Sequence[float] | None
    host_bytes: int
    is_timed: bool = False

    def variants(self, cache: Cache) -> tuple[Variant, ...]:
        """Return each manager with each of its choices."""
        if ManagerName.VLLM in self.managers:
            allow_no_gpu()
        settings = [VllmOptions()]
        if not isinstance(self.retention, str) and (self.retention != 0 or not self.is_timed):
            settings = [VllmOptions(retention=self.retention)]
        elif cache.model is not None and cache.deployment is not None:
            settings = vllm_settings(cache.model, cache.deployment)
        return make_variants(
            *(self.managers, self.placements, settings, self.signal),
            hosts=sorted({0, self.host_bytes}) if self.is_timed else [self.host_bytes],
        )


def read_asked(
    managers: Sequence[ManagerName],
    placement: str,
    *,
    retention: str,
    signal: float | None,
    share: str | None,
    host: str | None,
    is_timed: bool,
) -> Asked:
    """Read options as they are written."""
    placements = each_once("--placement", placement.split(","))
    for name in placements:
        CheckpointPolicy(name)
    shares = None if share is None else read_shares(share)
    each_once("--share", [share_text(one) for one in shares or ()])
    return Asked(
        placements=placements,
        retention=read_retention(retention),
        shares=shares,
        host_bytes=0 if host is None else parse_memory(host, "--host"),
        managers=each_once("--manager", managers),
        signal=signal,
        is_timed=is_timed,
    )


def planned_cache(
    model: str, memory: str, deployment: Deployment, speculative: str | None
) -> Cache:
    """Return the cache that ``--model`` plans in ``--memory``."""
    planned, drafts = drafted(load_model(model), speculative)
    deployment = msgspec.structs.replace(deployment, num_speculative_tokens=drafts)
    check_block_size(deployment)
    return plan_cache(planned, parse_memory(memory), deployment)


def record_or_card(clock: str | None, gpu: str | None) -> tuple[Path | None, str | None]:
    """Return what ``--clock`` names if it is recorded traffic, and the kind of the planned card."""
    record = Path(clock) if clock is not None and Path(clock).is_file() else None
    card, option = (clock, "--clock") if clock is not None and record is None else (gpu, "--gpu")
    return record, None if card is None else parse_cards(card, option).kind


def timed_config(
    config: EngineConfig, cache: Cache, slo: str | None, record: Path | None = None
) -> EngineConfig:
    """Let the time of a cache's model and card pass, or of a record, and measure its targets."""
    assert cache.model is not None
    assert cache.deployment is not None
    if record is None:
        step = step_time(cache.model, cache.deployment)
    else:
        step = fit(list(LineReader(record, "skip").parse(parse)), config.max_num_batched_tokens)
    if step is None:
        raise ReplayError(f"--clock: the time of a step of {cache.model.name} is not known there")
    targets = tuple(Target.read(one) for one in slo.split(",")) if slo else ()
    # A record's times have the delay of its engine in them.
    is_card = record is None
    return replace(config, step_time=step, targets=targets, async_scheduling=is_card)


def counted_cache(num_blocks: str, block_size: int | None, trace: Trace) -> Cache:
    """Return the cache of ``--num-blocks``, which may be as many as a trace needs."""
    size = block_size or DEFAULT_BLOCK_SIZE
    return block_cache(read_num_blocks(num_blocks, trace, size), size)
