"""Hooks that see each of vLLM's schedulers once it is made."""

from collections.abc import Callable
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

_vllm_init = Scheduler.__init__

_HOOKS: list[Callable[[Any], None]] = []


def when_made(hook: Callable[[Any], None]) -> Callable[[], None]:
    """Call ``hook`` with each scheduler made from now on, and return what ends that.

    A second call with the same changes nothing.
    """
    if hook not in _HOOKS:
        _HOOKS.append(hook)
    Scheduler.__init__ = _init  # type: ignore[method-assign]

    def end() -> None:
        if hook in _HOOKS:
            _HOOKS.remove(hook)
        if not _HOOKS:
            Scheduler.__init__ = _vllm_init  # type: ignore[method-assign]

    return end


def _init(self: Any, *args: Any, **kwargs: Any) -> None:
    _vllm_init(self, *args, **kwargs)
    for hook in _HOOKS:
        hook(self)
