"""The entry point that vLLM calls in each of its processes."""

from collections.abc import Callable

import vllm

from hybrid_blocks import variables
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.offload.replacement import replace_spec, serve_slabs
from hybrid_blocks.vllm import surface
from hybrid_blocks.vllm.level import (
    VARIABLE,
    Level,
    grant,
    is_tested,
    requested,
    schedules_in_one_call,
)
from hybrid_blocks.vllm.log import logger
from hybrid_blocks.vllm.surface import support


def register() -> None:
    """Replace vLLM's block management at the level that the environment asks for.

    A vLLM that lacks what the level needs gets the next lower one, and the log says what it lacks.
    vLLM may call this more than once. Raises ``InvalidArgumentError`` for a value of the
    environment that names nothing, unless the level is ``off``.
    """
    level = requested()
    if level is Level.OFF:
        _leave_out_what_is_wrong(replace_spec)
        _leave_out_what_is_wrong(_record)
        return
    one_call = schedules_in_one_call()
    replace_spec()
    # The comparison is with vLLM's own classes, so it comes before any is replaced.
    granted = grant(level)
    _record()
    if granted.level is not level:
        logger.warning_once(
            "hybrid_blocks runs at level %s, not %s: %s. %s=%s silences this.",
            granted.level,
            level,
            granted.reason,
            VARIABLE,
            granted.level,
        )
    elif not is_tested():
        logger.warning_once(
            "hybrid_blocks was tested with vLLM %s; %s has all that level %s needs. "
            "%s=off switches it off.",
            support.tested_versions(),
            vllm.__version__,
            level,
            VARIABLE,
        )
    if granted.level is Level.OFF:
        return
    from hybrid_blocks.vllm import install  # noqa: PLC0415 - imports what off never needs

    if granted.level is Level.NATURAL:
        serve_slabs()
    install.install(granted.level, schedulers=one_call and granted.level is not Level.POOL)


def _leave_out_what_is_wrong(install: Callable[[], None]) -> None:
    """Install what works at every level; a wrong variable must not stop an engine at ``off``."""
    try:
        install()
    except InvalidArgumentError as error:
        logger.warning_once(
            "hybrid_blocks: %s; %s=%s goes on without it", error, VARIABLE, Level.OFF
        )


def _record() -> None:
    """Record the engine's traffic, if the environment asks for it and this vLLM allows it."""
    if not variables.RECORD.value():
        return
    if differences := surface.part_differences("recorder", vllm.__version__):
        logger.warning_once(
            "hybrid_blocks records no traffic: vLLM %s differs: %s; leave out %s",
            vllm.__version__,
            "; ".join(differences),
            variables.RECORD.name,
        )
        return
    from hybrid_blocks.vllm import recorder  # noqa: PLC0415 - imports vLLM's scheduler

    recorder.install()
