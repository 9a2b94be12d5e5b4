"""The client's hints on a request's session: its name, and how it continues."""

from typing import Any

from hybrid_blocks._core import SESSION_HINTS
from hybrid_blocks.vllm.log import logger

ACTION = "hybrid_blocks.session"
"""The type of the actions among a request's ``kv_hints`` that are meant for the block manager."""

VERSION = "1"
ARGUMENT = "session_hint"
"""Name of the hint among ``vllm_xargs``: HTTP clients cannot send ``kv_hints``."""


def client_hints(request: Any) -> tuple[str | None, str | None]:
    """Return the session of a request and its hint, ``None`` for each that its client left out.

    A hint that cannot be understood is left out with a warning: no client can stop an engine.
    """
    session = getattr(request, "session_id", None)
    return session if isinstance(session, str) and session else None, _hint(request)


def _hint(request: Any) -> str | None:
    envelope = getattr(request, "kv_hints", None)
    hint = None if envelope is None else _last_of(envelope.actions)
    if hint is None:
        arguments = getattr(request.sampling_params, "extra_args", None) or {}
        hint = arguments.get(ARGUMENT)
    if hint is None or hint in SESSION_HINTS:
        return hint
    # Without what was said, so that no client can fill the log.
    logger.warning_once(
        "hybrid_blocks: a session hint that is none of %s is ignored", SESSION_HINTS
    )
    return None


def _last_of(actions: list[Any]) -> Any:
    """Return what the last of the actions says that is meant for us."""
    ours = [action for action in actions if action.action_type == ACTION]
    known = [action for action in ours if action.action_version == VERSION]
    if len(known) < len(ours):
        logger.warning_once(
            "hybrid_blocks: actions of type %s are heeded in version %s only", ACTION, VERSION
        )
    return known[-1].payload.get("hint", "") if known else None
