"""``kv_transfer_params``: a router sets them, a client can, and vLLM uses them as they come."""

from collections import Counter
from collections.abc import Callable, Mapping
from math import isfinite
from reprlib import repr as shortened
from typing import Any, Final

NO_ENGINE: Final = ""
"""The engine of a read that is refused: it fails, and vLLM's policy of failed loads applies."""

MOST_RANKS: Final = 1024
_MOST_BLOCKS: Final = 1 << 31

_PRIVATE: Final = ("_p_side_truncated", "_remote_blocks_processed")
"""vLLM's own notes on a request, which none has when it arrives."""

_SOURCE: Final = ("remote_block_ids", "remote_num_tokens")


def of_request(params: object) -> dict[str, Any] | None:
    """Return the params of a request that arrives, a copy; None for none, or no mapping.

    ``vllm_xargs`` lets any client put a text or a list where vLLM expects a mapping.
    """
    if not isinstance(params, Mapping):
        return None
    return {name: value for name, value in params.items() if name not in _PRIVATE}


def names_source(params: Mapping[str, Any]) -> bool:
    """Return whether blocks of another engine are to be read."""
    return bool(params.get("do_remote_prefill") or params.get("remote_block_ids"))


def without_source(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return params by which nothing is read, so that the engine computes the prompt."""
    kept = {name: value for name, value in params.items() if name not in _SOURCE}
    return kept | {"do_remote_prefill": False}


def with_failing_read() -> dict[str, Any]:
    """Return params of a read that fails."""
    remote = {"remote_engine_id": NO_ENGINE, "remote_request_id": "", "remote_host": ""}
    return {"do_remote_prefill": True, "remote_block_ids": [[]], "remote_port": 0, **remote}


def refusal(params: Mapping[str, Any], own_engine: str, num_groups: int | None) -> str | None:
    """Return which field cannot be followed and why, None if a read may begin.

    ``num_groups`` is None where engines may have different groups.
    """
    for name, (is_right, expected) in _FIELDS.items():
        if not is_right(params.get(name)):
            return f"{name} is {shortened(params.get(name))}, not {expected}"
    if params["remote_engine_id"] == own_engine:
        return f"remote_engine_id is {shortened(own_engine)}, which is this engine itself"
    if params.get("do_remote_prefill") and params.get("do_remote_decode"):
        return "do_remote_prefill and do_remote_decode are both set; a request is one of them"
    return _refusal_of_blocks(params.get("remote_block_ids"), num_groups)


def _refusal_of_blocks(groups: object, num_groups: int | None) -> str | None:
    if not isinstance(groups, list | tuple) or not groups:
        return f"remote_block_ids is {shortened(groups)}, not a list of blocks for each group"
    if num_groups is not None and len(groups) != num_groups:
        return (
            f"remote_block_ids has {len(groups)} groups, and the engine has {num_groups}, as where "
            "the other does not run at level natural"
        )
    for number, ids in enumerate(groups):
        if not isinstance(ids, list | tuple):
            return f"remote_block_ids[{number}] is {shortened(ids)}, not a list of blocks"
        for block in ids:
            if not _is_whole(block, 0, _MOST_BLOCKS - 1):
                return f"remote_block_ids[{number}] holds {shortened(block)}, not a block's id"
        # Block 0 is the null block, which stands wherever a window has nothing.
        block, count = next(iter(Counter(filter(None, ids)).most_common(1)), (0, 1))
        if count > 1:
            return f"remote_block_ids[{number}] holds block {block} {count} times"
    return None


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _whole(least: int, most: int) -> Callable[[object], bool]:
    return lambda value: _is_whole(value, least, most)


def _optional(is_right: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or is_right(value)


def _is_text(value: object) -> bool:
    """Return whether a text can be sent: one of JSON may hold half a character."""
    if not isinstance(value, str) or not value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_time(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and isfinite(value)  # type: ignore[arg-type]


_RANKS: Final = _optional(_whole(1, MOST_RANKS)), f"a number from 1 to {MOST_RANKS:,}"
_FIELDS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    **dict.fromkeys(
        ("do_remote_prefill", "do_remote_decode"),
        (_optional(lambda value: isinstance(value, bool)), "true or false"),
    ),
    "remote_engine_id": (_is_text, "an engine's id"),
    "remote_request_id": (_is_text, "a request's id"),
    "remote_host": (_is_text, "a host"),
    "remote_port": (_whole(1, 65_535), "a port from 1 to 65,535"),
    **dict.fromkeys(("tp_size", "dcp_size", "pp_size"), _RANKS),
    "remote_num_tokens": (_optional(_whole(0, 1 << 62)), "a number of tokens"),
    "remote_blocks_expiry_time": (_optional(_is_time), "a time in seconds"),
    "remote_registration_generation": (_optional(_whole(0, 1 << 62)), "a number"),
}
