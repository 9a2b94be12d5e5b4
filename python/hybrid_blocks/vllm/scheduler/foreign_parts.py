"""Parts of a scheduler that are neither vLLM's nor this package's, and that one call would skip."""

from collections.abc import Iterator
from types import FunctionType
from typing import Any, Final

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

_VLLMS: Final = (Scheduler, AsyncScheduler)
_KNOWN: Final = ("vllm", "hybrid_blocks")

MAY_BE_OWN: Final = frozenset(
    {
        # What engines call: an own one sees whole steps and calls vLLM's.
        *("add_request", "finish_requests", "schedule", "update_from_output", "shutdown"),
        *("has_finished_requests", "has_request", "has_requests", "has_unfinished_requests"),
        *("get_num_unfinished_requests", "get_request_counts", "pause_state", "set_pause_state"),
        *("get_ec_connector", "get_grammar_bitmask", "get_kv_cache_usage", "get_kv_connector"),
        *("get_kv_event_publisher_config", "make_stats", "reset_connector_cache"),
        *("reset_encoder_cache", "reset_prefix_cache", "update_draft_token_ids"),
        "update_draft_token_ids_in_output",
        # What vLLM's code alone calls: for requests that wait, load, are preempted, or end.
        *("_preempt_request", "_free_request", "_free_request_blocks", "_free_blocks"),
        *("_connector_finished", "_enqueue_waiting_request", "_is_blocked_waiting_status"),
        *("_handle_blocked_waiting_request", "_update_waiting_for_remote_kv"),
        *("_update_from_kv_xfer_finished", "_handle_invalid_blocks", "_handle_failed_recving"),
    }
)
"""Methods of vLLM's schedulers that a derived class may have for itself."""


def reason(scheduler: type) -> str | None:
    """Return why the requests of a scheduler of this class are scheduled one by one, or None."""
    found = sorted({f"{owner.__name__}.{name}" for owner, name in _foreign(scheduler)})
    return f"vLLM's methods are replaced: {', '.join(found)}" if found else None


def _foreign(scheduler: type) -> Iterator[tuple[type, str]]:
    """Yield the parts that stand for vLLM's, and the class that each is of."""
    # A property may stand for what vLLM keeps in an attribute.
    made = {name for owner in _VLLMS for name in owner.__init__.__code__.co_names}
    names = {name for owner in _VLLMS for name in dir(owner)} | made
    checked = {name for name in names if not name.startswith("__")} - MAY_BE_OWN - {"_abc_impl"}
    for owner in scheduler.__mro__:
        for name in checked & vars(owner).keys():
            if not _is_known(vars(owner)[name]):
                yield owner, name


def _is_known(part: Any) -> bool:
    """Return whether vLLM or this package defines a part."""
    if isinstance(part, property):
        return all(_is_known(it) for it in (part.fget, part.fset, part.fdel) if it is not None)
    function = getattr(part, "__func__", part)
    if isinstance(function, FunctionType):
        # Where the code stands: a wrapper takes on the name of what it wraps.
        module = str(function.__globals__.get("__name__", ""))
        return module.partition(".")[0] in _KNOWN
    return not callable(function) and not hasattr(function, "__get__")
