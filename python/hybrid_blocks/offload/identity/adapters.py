"""Digests of a request with a LoRA adapter hold the content of the adapter's files.

vLLM's digests hold its name and path, and chunks on disk and objects outlive the files there.
"""

import functools
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from vllm.v1.core import kv_cache_utils

from hybrid_blocks.offload.identity.fingerprint import files_of, model_content

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.request import Request

_ENGINE: Final = "vllm.v1.engine.core"


class Adapters:
    """Content of the adapters that an engine computes with.

    An adapter whose content is not known gets a text that no other process has: one that a worker
    fetches from a hub, and one whose files changed after a worker may have read them.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], tuple[object, str]] = {}
        # One request asks for each of its blocks.
        self._last = ("", "")

    def note_load(self, adapter: "LoRARequest") -> None:
        """Take the files of an adapter that the workers have just read."""
        if adapter.load_inplace:
            self._known.pop((adapter.lora_int_id, adapter.lora_path), None)
        self._content(adapter)

    def content_of(self, request: "Request") -> str:
        """Return the content of a request's adapter."""
        if request.lora_request and self._last[0] != request.request_id:
            self._last = request.request_id, self._content(request.lora_request)
        return self._last[1]

    def _content(self, adapter: "LoRARequest") -> str:
        key = adapter.lora_int_id, adapter.lora_path
        path = Path(adapter.lora_path).expanduser()
        known, state = self._known.get(key), _state(path)
        if known is None or known[0] != state:
            is_read_now = known is None and state
            known = state, _read(path) if is_read_now else _of_this_process()
            self._known[key] = known
        return known[1]


def _read(folder: Path) -> str:
    with suppress(OSError):
        return model_content(folder)
    return _of_this_process()


def _of_this_process() -> str:
    return uuid4().hex


def _state(folder: Path) -> object:
    """Return what a write to one of the files changes; nothing if they cannot be read."""
    with suppress(OSError):
        states = {name: file.stat() for name, file in files_of(folder).items()}
        return {name: (it.st_ino, it.st_size, it.st_mtime_ns) for name, it in states.items()}
    return {}


def hold_content() -> None:
    """Let digests hold the content of adapters, in the process that computes them."""
    utils: Any = kv_cache_utils
    by_name = utils._gen_lora_extra_hash_keys
    if hasattr(by_name, "__wrapped__"):
        return
    adapters = Adapters()

    @functools.wraps(by_name)
    def by_content(request: "Request") -> list[tuple[str, ...]]:
        return [(*key, adapters.content_of(request)) for key in by_name(request)]

    utils._gen_lora_extra_hash_keys = by_content
    if (engine := sys.modules.get(_ENGINE)) is None:
        return
    add_lora = engine.EngineCore.add_lora

    @functools.wraps(add_lora)
    def add_and_note(self: Any, lora_request: "LoRARequest") -> bool:
        is_loaded: bool = add_lora(self, lora_request)
        adapters.note_load(lora_request)
        return is_loaded

    engine.EngineCore.add_lora = add_and_note
