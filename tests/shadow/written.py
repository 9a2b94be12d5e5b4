"""Records of virtual engines, and shadows that replay them."""

import base64
import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from hybrid_blocks.geometry.step_time import KNOTS, StepTime
from hybrid_blocks.tools.replay import (
    Cache,
    EngineConfig,
    ManagerName,
    VirtualEngine,
    block_cache,
    make_manager,
    request_limits,
)
from hybrid_blocks.tools.shadow.engine import LiveEngine
from hybrid_blocks.tools.shadow.publish import run
from hybrid_blocks.tools.shadow.shadow import OnHit, Shadow
from hybrid_blocks.tools.trace import Trace
from hybrid_blocks.tools.trace.recorded import Record

BLOCK = 16
NUM_BLOCKS = 150
STEP = StepTime(ms=(20.0,) * len(KNOTS), prompt=0.01, decode=0.0, context=0.0, source="a test")
CONFIG = EngineConfig(
    max_num_seqs=16, max_num_batched_tokens=2048, reject_too_large=True, step_time=STEP
)
CACHE = block_cache(NUM_BLOCKS, BLOCK)


def recorded(trace: Trace, cache: Cache = CACHE, config: EngineConfig = CONFIG) -> list[Record]:
    """Serve a trace, and return its lines in the order in which requests ended."""
    found: dict[int, int] = {}
    manager = make_manager(ManagerName.RUST, cache, config)
    engine = VirtualEngine(trace, manager, cache, config, on_hit=found.__setitem__)
    engine.run()
    times = engine.latencies
    lines = [
        Record(
            number=number,
            arrival=float(times.arrived[number]),
            block_tokens=BLOCK,
            prompt_tokens=int(trace.prompt_tokens[number]),
            output_tokens=int(trace.output_tokens[number]),
            blocks=digests(trace.token_ids(number)),
            found_tokens=found[number],
            scheduled=0.0,
            first_token=float(times.first_token[number] - times.arrived[number]),
            finished=float(times.finished[number] - times.arrived[number]),
        )
        for number in sorted(found)
    ]
    return sorted(lines, key=lambda line: line.arrival + (line.finished or 0))


def digests(tokens: np.ndarray, key: bytes = b"") -> str:
    """A digest of each whole block and of all before it."""
    text, before = "", key
    for block in range((len(tokens) - 1) // BLOCK):
        content = tokens[block * BLOCK : (block + 1) * BLOCK].tobytes()
        before = hashlib.blake2b(before + content, digest_size=9).digest()
        text += base64.b64encode(before).decode()
    return text


def text(lines: list[Record]) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def engines(on_hit: OnHit, cache: Cache = CACHE) -> Mapping[str, LiveEngine]:
    """The engine's own replay, and one that may run a request at a time."""
    limits = request_limits([ManagerName.RUST], cache, CONFIG)
    return {
        name: LiveEngine(
            make_manager(ManagerName.RUST, cache, config),
            *(cache, config),
            limits=limits,
            on_hit=partial(on_hit, name),
        )
        for name, config in (("vllm", CONFIG), ("other", CONFIG))
    }


def shadow_of(said: list[str]) -> Shadow:
    return Shadow(engines, "vllm", said.append, is_fitted=False)


def followed(path: Path, shadow: Shadow) -> None:
    run(path, lambda _: shadow, once=True)
