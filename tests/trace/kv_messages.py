"""Batches of KV events in the form in which engines publish them."""

from typing import Any

import msgspec


def stored(
    hashes: list[Any], parent: Any = None, block_tokens: int = 16, **more: Any
) -> dict[str, Any]:
    """An event of vLLM's; its tokens are numbers that no file may hold."""
    event = {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": [777_777] * (len(hashes) * block_tokens),
        "block_size": block_tokens,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    return event | more


def removed(hashes: list[Any], **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"} | more


def message(at: float, *events: Any) -> bytes:
    return msgspec.msgpack.encode([at, list(events), 0])


def name(number: int) -> bytes:
    """A hash of 32 bytes."""
    return number.to_bytes(32, "big")


def names(*numbers: int) -> list[bytes]:
    return [name(number) for number in numbers]
