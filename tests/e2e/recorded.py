"""An engine's record of its own traffic, compared with what its clients saw."""

import asyncio
import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.plan import Deployment, plan_natural, plan_vllm
from hybrid_blocks.tools.replay import EngineConfig, ManagerName, VirtualEngine, make_manager
from hybrid_blocks.tools.replay.cache import plan_cache
from hybrid_blocks.tools.replay.managers.vllm_adapter import VllmReplayAdapter
from hybrid_blocks.tools.trace import Trace, read_trace
from hybrid_blocks.tools.trace.lines import LineReader
from hybrid_blocks.tools.trace.recorded import Record, parse
from server import Server
from traffic import client, complete

# The CPU's attention takes blocks of the first; vLLM inflates blocks there in steps of the second.
_KERNEL_BLOCK, _ALIGNED_BLOCK = 32, 128
_MAX_NUM_SEQS = 128  # vLLM's default on a CPU
_LENGTH = 1024
_ROOM = 2**30  # to plan with: the blocks of a plan are as large in any memory

_PATIENCE_S = 120.0


async def kill_while_it_writes(server: Server, path: Path, prompts: Sequence[str]) -> None:
    """End the server as SIGKILL does, once some of the requests under way are in the file."""
    size = path.stat().st_size
    async with client(server) as api:
        answers = [
            asyncio.create_task(complete(api, prompt, 1 + 30 * number))
            for number, prompt in enumerate(prompts)
        ]
        deadline = time.monotonic() + _PATIENCE_S
        while path.stat().st_size == size and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        server.kill()
        ended = await asyncio.gather(*answers, return_exceptions=True)
    assert any(isinstance(one, Exception) for one in ended), "the server was killed too late"


def lines_of(traffic: Path) -> list[Record]:
    """Return the whole lines of a file, in the order in which their requests arrived."""
    lines = LineReader(traffic, "skip").parse(parse)
    return sorted(lines, key=lambda line: line.arrival)


def hits_of_replay(
    model: Path,
    traffic: Path,
    num_units: int,
    tokens_per_step: int,
    arrival: Sequence[float],
    *,
    is_natural: bool,
) -> list[int]:
    """Return the prompt tokens that a replay finds of requests, in as many blocks or slabs.

    They arrive at the given times, since a virtual step takes longer than one of so small a model.
    """
    config = EngineConfig(
        max_num_seqs=_MAX_NUM_SEQS, max_num_batched_tokens=tokens_per_step, watermark=0.0
    )
    trace = read_trace(traffic, on_error="skip").head(len(arrival))
    trace = dataclasses.replace(trace, arrival=np.asarray(arrival, dtype=np.float64))
    return replayed(model, trace, num_units, config, is_natural=is_natural)[1]


def replayed(
    model: Path, trace: Trace, num_units: int, config: EngineConfig, *, is_natural: bool
) -> tuple[VirtualEngine, list[int]]:
    """Replay a trace in as many blocks or slabs; return what each request finds too."""
    dtype = json.loads((model / "config.json").read_text())["dtype"]
    layers = msgspec.structs.replace(load_model(str(model)), dtype=dtype)
    deployment = Deployment(
        max_model_len=_LENGTH,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        in_flight_batches=1,
        block_size=_KERNEL_BLOCK if is_natural else _ALIGNED_BLOCK,
    )
    if is_natural:
        unit_bytes = plan_natural(layers, _ROOM, deployment).slab_bytes
    else:
        unit_bytes = plan_vllm(layers, _ROOM, deployment).block_bytes
    cache = plan_cache(layers, num_units * unit_bytes, deployment)
    # `make_manager` plans vLLM's blocks as CUDA takes them.
    manager = (
        make_manager(ManagerName.RUST, cache, config)
        if is_natural
        else VllmReplayAdapter(
            plan_vllm(layers, cache.memory_bytes, deployment),
            deployment,
            config,
            retention=0,
            spare_calls=True,
        )
    )
    hits = [0] * len(trace)
    engine = VirtualEngine(trace, manager, cache, config, on_hit=hits.__setitem__)
    engine.run()
    return engine, hits
