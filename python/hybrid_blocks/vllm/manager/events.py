"""KV-cache events of what the core did, in vLLM's own words."""

from collections.abc import Iterable
from typing import Any

from vllm.distributed.kv_events import BlockStored
from vllm.multimodal.utils import get_mm_features_in_window
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import (
    maybe_convert_block_hash,
    resolve_block_hashes,
    to_event_extra_keys,
)
from vllm.v1.request import Request

from hybrid_blocks.vllm import releases


def note(
    pool: BlockPool,
    block_sizes: tuple[int, ...],
    request: Request | None,
    events: Iterable[tuple[Any, ...]],
) -> None:
    """Append the events to the pool's queue; those of stored blocks are about ``request``."""
    for event in events:
        match event:
            case ("removed", key):
                pool._emit_block_removed_events([key])
            case ("stored", group, start, end, positions) if request is not None:
                size = block_sizes[group]
                stored = _stored(
                    pool,
                    request,
                    group=group,
                    block_size=size,
                    looked_at=range(start, end),
                    positions=positions,
                )
                pool.kv_event_queue.append(stored)
            case ("tail", group, num_tokens) if request is not None:
                pool.kv_event_queue.append(stored_tail(pool, request, group, num_tokens))


def _stored(
    pool: BlockPool,
    request: Request,
    *,
    group: int,
    block_size: int,
    looked_at: range,
    positions: list[int],
) -> BlockStored:
    start = looked_at.start
    hashes = resolve_block_hashes(request.block_hashes, pool.hash_block_size, block_size)
    extra_keys_of = releases.installed.event_extra_keys(pool)
    extra_keys = []
    mm_index = 0
    for position in positions:
        first = position * block_size
        keys, mm_index = extra_keys_of(request, first, first + block_size, mm_index)
        extra_keys.append(keys)
    ends = [(position + 1) * block_size for position in positions]
    return pool._build_block_stored_event(
        request,
        block_hashes=[maybe_convert_block_hash(hashes[position]) for position in positions],
        parent_block_hash=maybe_convert_block_hash(hashes[start - 1]) if start else None,
        start_token_idx=start * block_size,
        end_token_idx=looked_at.stop * block_size,
        block_size=block_size,
        kv_cache_group_id=group,
        extra_keys_list=extra_keys,
        **releases.installed.event_lookahead(pool, request, ends),
    )


def stored_tail(pool: BlockPool, request: Request, group: int, num_tokens: int) -> BlockStored:
    """Return the event of a block that can be hit up to ``num_tokens``, inside it."""
    size = pool.hash_block_size
    number = num_tokens // size
    start = num_tokens - size
    hashes = request.block_hashes
    extra_keys, _ = releases.installed.event_extra_keys(pool)(
        request, start, num_tokens, _first_mm_feature(request, start, num_tokens)
    )
    lora = request.lora_request
    return BlockStored(
        block_hashes=[maybe_convert_block_hash(hashes[number - 1])],
        parent_block_hash=maybe_convert_block_hash(hashes[number - 2]) if number > 1 else None,
        token_ids=request.all_token_ids[start:num_tokens],
        block_size=size,
        lora_id=lora.adapter_id if lora else None,
        medium=pool.medium,
        lora_name=lora.name if lora else None,
        extra_keys=to_event_extra_keys([extra_keys]),
        group_idx=group,
        session_id=request.session_id,
        **releases.installed.event_lookahead(pool, request, [num_tokens]),
    )


def _first_mm_feature(request: Request, start: int, end: int) -> int:
    features = request.mm_features
    if start == 0 or not features:
        return 0
    last = features[-1].mm_position
    if last.offset + last.length <= start:
        return 0
    index, _ = get_mm_features_in_window(features, start, end)
    return index
