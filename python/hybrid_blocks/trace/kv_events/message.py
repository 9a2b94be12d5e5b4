"""Batches of KV events as vLLM and SGLang publish them, without their tokens.

A batch is a list in msgpack: its time, its events, maybe a rank. An event is a map with its
``type``, or in older releases a list that begins with it.
"""

from typing import Any, Final, NamedTuple

import msgspec

_STORED: Final = (
    *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
    *("lora_name", "extra_keys", "group_idx"),
)
_REMOVED: Final = ("block_hashes", "medium", "group_idx")
_ON_DEVICE: Final = "gpu"


class Stored(NamedTuple):
    """Blocks that can be found from now on, or that a request found."""

    blocks: list[bytes]
    parent: bytes | None
    block_tokens: int
    num_tokens: int
    group: int | None
    layers: str | None
    session: str | None
    adapter: str | int | None


class Removed(NamedTuple):
    """Blocks that were evicted."""

    blocks: list[bytes]
    group: int | None


class Cleared(NamedTuple):
    """The engine has emptied its cache."""


class Batch(NamedTuple):
    """What happened on the device in a step, at a time in seconds since 1970.

    ``num_elsewhere`` events are of another medium, ``num_unknown`` of another type.
    """

    at: float
    events: list[Stored | Removed | Cleared]
    num_elsewhere: int
    num_unknown: int


class _Event(msgspec.Struct):
    block_hashes: list[bytes | int]
    medium: str | None = None
    group_idx: int | None = None


class _Stored(_Event, kw_only=True):
    token_ids: list[Any]
    block_size: int
    parent_block_hash: bytes | int | None = None
    lora_id: int | None = None
    lora_name: str | None = None
    kv_cache_spec_kind: str | None = None
    session_id: str | None = None


class _Batch(msgspec.Struct, array_like=True):
    at: float
    events: list[dict[str, Any] | list[Any]]


_decoder = msgspec.msgpack.Decoder(_Batch)


def decode(payload: bytes) -> Batch:
    """Read a batch; a ``ValueError`` says what is wrong with it."""
    batch = _decoder.decode(payload)
    found: list[Stored | Removed | Cleared] = []
    num_elsewhere = num_unknown = 0
    for event in batch.events:
        kind, fields = _named(event)
        if kind == "AllBlocksCleared":
            found.append(Cleared())
        elif kind not in {"BlockStored", "BlockRemoved"}:
            num_unknown += 1
        elif (fields.get("medium") or _ON_DEVICE).lower() != _ON_DEVICE:
            num_elsewhere += 1
        elif kind == "BlockRemoved":
            removed = msgspec.convert(fields, _Event)
            found.append(Removed(_bytes(removed.block_hashes), removed.group_idx))
        else:
            found.append(_stored(msgspec.convert(fields, _Stored)))
    return Batch(batch.at, found, num_elsewhere, num_unknown)


def _named(event: dict[str, Any] | list[Any]) -> tuple[Any, dict[str, Any]]:
    if isinstance(event, dict):
        return event.get("type"), event
    if not event:
        raise ValueError("an event is an empty list")
    names = _STORED if event[0] == "BlockStored" else _REMOVED
    return event[0], dict(zip(names, event[1:], strict=False))


def _stored(event: _Stored) -> Stored:
    if event.block_size < 1:
        raise ValueError(f"a stored block has {event.block_size} tokens")
    parent = event.parent_block_hash
    return Stored(
        blocks=_bytes(event.block_hashes),
        parent=None if parent is None else _bytes([parent])[0],
        block_tokens=event.block_size,
        num_tokens=len(event.token_ids),
        group=event.group_idx,
        layers=event.kv_cache_spec_kind,
        session=event.session_id,
        adapter=event.lora_name if event.lora_name is not None else event.lora_id,
    )


def _bytes(hashes: list[bytes | int]) -> list[bytes]:
    """Return hashes as bytes; engines publish whole ones, or 64 bits of them as a number."""
    return [it if isinstance(it, bytes) else it.to_bytes(16, "big", signed=True) for it in hashes]
