"""Which engines are recorded: those of the oracle, roomy and tight, and random mixes of groups."""

import math
from collections.abc import Iterator
from itertools import islice
from random import Random

from hybrid_blocks.vllm.manager.geometry import unsupported_reason
from oracle.engines import ATTENTION, MAMBA, Engine, chunked, full, mamba, mla, sliding, tight
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import KVCacheSpec

# Random mixes are named by a number, which draws them.
NUM_MIXES = 60


def recorded() -> dict[str, Engine]:
    """Return the engines by name, in a fixed order."""
    plain = ATTENTION | MAMBA
    engines = plain | {f"{name}-tight": tight(engine) for name, engine in plain.items()}
    engines |= islice(_mixes(), NUM_MIXES)
    return engines


def _mixes() -> Iterator[tuple[str, Engine]]:
    """Yield the mixes that vLLM can manage and the core covers."""
    number = 0
    while True:
        engine = _mix(Random(number))
        if _is_possible(engine):
            yield f"mix-{number}", engine
        number += 1


def _mix(draw: Random) -> Engine:
    states = draw.choice(("no", "no", "in place", "align", "align"))
    groups = _attention(draw, draw.randint(1, 4 if states != "no" else 6))
    num_drafts = draw.choice((0, 0, 1, 2))
    if states == "align":
        checkpoint = draw.choice((None, None, 4, 8, 16))
        state = mamba(16, "align", num_drafts, checkpoint)
        groups += [state] * draw.randint(1, 2)
    elif states == "in place":
        groups += [mamba(32, "none", num_drafts)] * draw.randint(1, 2)
    draw.shuffle(groups)
    sizes = [spec.block_size for spec in groups]
    unit = math.lcm(*sizes)
    hash_block = math.gcd(*sizes)
    if states == "align" and len(groups) > 1:
        hash_block = draw.choice([size for size in (4, 8, 16) if hash_block % size == 0])
    use_eagle = draw.random() < 0.4
    flagged = draw.sample(range(len(groups)), draw.randint(1, len(groups)))
    return Engine(
        tuple(groups),
        scheduler_block_size=unit,
        hash_block_size=hash_block,
        num_blocks=draw.choice((24, 40, 80, 160)),
        enable_caching=states != "in place",
        use_eagle=use_eagle,
        eagle_groups=frozenset(flagged if use_eagle and draw.random() < 0.6 else ()),
        num_spec_tokens=num_drafts,
        retention_interval=draw.choice((None, None, 0, unit, 2 * unit)),
        watermark=draw.choice((0.0, 0.0, 0.1)),
        lookahead=num_drafts if use_eagle else 0,
        num_prefill_lookahead=draw.choice((0, 0, 2)) if use_eagle else 0,
        junctions=draw.random() < 0.5,
    )


def _attention(draw: Random, count: int) -> list[KVCacheSpec]:
    kinds = [full, mla, _sliding, _sliding, _chunked]
    first: list[KVCacheSpec] = [full(draw.choice((4, 8, 16)))] if draw.random() < 0.8 else []
    rest = [draw.choice(kinds)(draw.choice((4, 8, 16))) for _ in range(count - len(first))]
    return first + rest


def _sliding(block_size: int) -> KVCacheSpec:
    return sliding(block_size, 2 * block_size + 1, extra=block_size % 3 - 1)


def _chunked(block_size: int) -> KVCacheSpec:
    return chunked(block_size, 2 * block_size)


def _is_possible(engine: Engine) -> bool:
    if unsupported_reason(engine.config()):
        return False
    try:
        KVCacheManager(**engine.arguments()).coordinator.find_longest_cache_hit([], 0)
    except (AssertionError, NotImplementedError, ValueError):
        return False
    return True
