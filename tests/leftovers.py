"""Replaced parts of vLLM, and variables, that a test leaves behind for the tests after it."""

import logging
import os
import sys
from typing import Any

_OURS = "HYBRID_BLOCKS"
# The folder of a process for its figures: made when it first needs one, and removed at its end.
_OF_THE_PROCESS = frozenset({"HYBRID_BLOCKS_METRICS"})


def state() -> dict[str, Any]:
    """Read the state of the process. Import nothing: an absent module was not changed."""
    ours = {it for it in os.environ if it.startswith(_OURS)} - _OF_THE_PROCESS
    seen: dict[str, Any] = {f"${name}": os.environ[name] for name in ours}
    seen["the class of loggers"] = logging.getLoggerClass()
    seen["logging.disable"] = logging.root.manager.disable
    seen["level of the interpreter's switches"] = sys.getswitchinterval()
    if installation := sys.modules.get("hybrid_blocks.vllm.install"):
        seen["the plugin in vLLM"] = installation.is_installed()
        seen["what the plugin would take back"] = len(installation._UNDO)
    return seen


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Name what a test left; compare what only appeared with its usual value."""
    usual = {"the plugin in vLLM": False, "what the plugin would take back": 0}
    lines = []
    for name in sorted(before.keys() | after.keys()):
        was, now = (seen.get(name, usual.get(name)) for seen in (before, after))
        if was != now:
            lines.append(f"{name}: {was!r} before, {now!r} after")
    return lines


def plugins_are_loaded() -> bool:
    """Whether vLLM has loaded its plugins in this process; it does so once, when first asked."""
    plugins = sys.modules.get("vllm.plugins")
    return bool(plugins and plugins.plugins_loaded)


def take_back_the_plugin() -> None:
    """Take out what vLLM loaded by itself, in whichever test asked first."""
    installation = sys.modules.get("hybrid_blocks.vllm.install")
    if installation and installation.is_installed():
        installation.uninstall()
