"""The vLLM plugin: vLLM's block management, replaced at run time and only in memory.

``HYBRID_BLOCKS`` chooses the level: ``off``, ``pool`` (vLLM's managers over this project's block
pool) or ``manager`` (the default).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybrid_blocks.vllm.scheduler.one_call import AsyncScheduler, Scheduler

__all__ = ["AsyncScheduler", "Scheduler"]


def __getattr__(name: str) -> Any:
    """Import the schedulers when they are asked for: vLLM's own modules come with them.

    vLLM's own schedulers take their place if the installed vLLM lacks a need of them.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hybrid_blocks.vllm import level  # noqa: PLC0415

    granted = level.scheduler_grant()
    if granted.differences:
        from hybrid_blocks.vllm import scheduler  # noqa: PLC0415

        return scheduler.explained(name, str(granted.reason))
    from hybrid_blocks.vllm.scheduler import one_call  # noqa: PLC0415

    return getattr(one_call, name)
