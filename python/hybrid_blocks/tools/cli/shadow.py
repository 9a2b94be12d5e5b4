"""``hybrid-blocks shadow``: the traffic of a running engine, replayed as it is recorded."""

import errno
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from hybrid_blocks.recording.record_file import split
from hybrid_blocks.tools.cli.options import (
    BlockSize,
    Clock,
    KvCacheDtype,
    MambaSsmDtype,
    MaxNumBatchedTokens,
    MaxNumSeqs,
    Retention,
    Speculative,
    TensorParallel,
    Watermark,
)
from hybrid_blocks.tools.cli.replay_asked import (
    planned_cache,
    read_retention,
    record_or_card,
    timed_config,
)
from hybrid_blocks.tools.doctor.environment import allow_no_gpu, need_vllm
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.replay import (
    Cache,
    EngineConfig,
    ManagerName,
    ReplayError,
    VllmOptions,
    make_manager,
    request_limits,
)
from hybrid_blocks.tools.shadow.engine import LiveEngine
from hybrid_blocks.tools.shadow.publish import Page, run
from hybrid_blocks.tools.shadow.shadow import OnHit, Shadow
from hybrid_blocks.variables import LEVEL

NICENESS: Final = 10
REPLAYS: Final = {"vllm": ManagerName.VLLM, "natural": ManagerName.RUST}


def shadow_command(  # noqa: PLR0917 - typer reads the options from the signature
    file: Annotated[Path, typer.Argument(help="HYBRID_BLOCKS_RECORD of the engine.")],
    model: Annotated[str, typer.Option(help="Its model.")],
    memory: Annotated[str, typer.Option(help="Memory for the cache of each GPU.")],
    level: Annotated[str, typer.Option(metavar=LEVEL.values, help="Its level.")] = LEVEL.default,
    clock: Clock = None,
    block_size: BlockSize = None,
    kv_cache_dtype: KvCacheDtype = "auto",
    mamba_ssm_dtype: MambaSsmDtype = "auto",
    tp: TensorParallel = 1,
    speculative: Speculative = None,
    retention: Retention = "0",
    max_num_seqs: MaxNumSeqs = 256,
    max_num_batched_tokens: MaxNumBatchedTokens = 8192,
    watermark: Watermark = 0.0,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port of /metrics.")] = None,
    host: Annotated[str, typer.Option(help="Address of --port; all without.")] = "",
    once: Annotated[bool, typer.Option("--once", help="Stop at the end of FILE.")] = False,
) -> None:
    """Replay the traffic that an engine records, as vLLM and as level natural, while it runs.

    Without --clock the time of a step is fitted to FILE.
    """
    if level not in LEVEL.choices:
        raise ReplayError(f"--level {level!r} is none of {LEVEL.values}")
    record, card = record_or_card(clock, None)
    config = EngineConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        watermark=watermark,
        reject_too_large=True,
    )
    deployment = Deployment(
        tp=tp,
        kv_cache_dtype=kv_cache_dtype,
        mamba_ssm_dtype=mamba_ssm_dtype,
        block_size=block_size,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        in_flight_batches=1,
        card=card,
    )
    cache = planned_cache(model, memory, deployment, speculative)
    config = config if clock is None else timed_config(config, cache, None, record)
    kept = read_retention(retention)
    if isinstance(kept, str):
        raise ReplayError("--retention best: give the setting of the engine")
    split(file)  # refuse a wrong name before vLLM is needed
    need_vllm(" to replay its rules")
    allow_no_gpu()
    os.nice(NICENESS)
    options = VllmOptions(retention=kept, block_size=block_size)

    def make(engine: int) -> Shadow:
        return Shadow(
            partial(make_replays, cache, config, options),
            own="natural" if level == "natural" else "vllm",
            say=lambda text: say(f"engine {engine}: {text}" if engine else text),
            is_fitted=clock is None,
            block_tokens=cache.geometry.hash_block_size,
        )

    page = None if port is None else Page(host, port)
    run(file, make, page, {"model_name": Path(model).name}, once=once)


def say(text: str) -> None:
    """Print a line with the time; a full disk behind the output loses it."""
    try:
        typer.echo(f"{time.strftime('%H:%M:%S')} {text}")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def make_replays(
    cache: Cache, config: EngineConfig, options: VllmOptions, on_hit: OnHit
) -> Mapping[str, LiveEngine]:
    """Make empty replays; none gets a request that the other has no room for."""
    limits = request_limits(tuple(REPLAYS.values()), cache, config, vllm=options)
    return {
        name: LiveEngine(
            make_manager(manager, cache, config, vllm=options),
            *(cache, config),
            limits=limits,
            on_hit=partial(on_hit, name),
        )
        for name, manager in REPLAYS.items()
    }
