"""vLLM's options as its log writes them."""

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from hybrid_blocks.tools.read.log_lines import Logged
from hybrid_blocks.tools.read.options import Option, recorded

_KEY: Final = re.compile(r"'(\w+)': ")
_QUOTED: Final = re.compile(r"'(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\"")
_MOST_DIGITS: Final = 20
_ENGINE: Final = {
    "dtype": "dtype",
    "max_seq_len": "max_model_len",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "decode_context_parallel_size": "decode_context_parallel_size",
    "kv_cache_dtype": "kv_cache_dtype",
    "enable_prefix_caching": "enable_prefix_caching",
}
_CLOSING: Final = {"{": "}", "[": "]", "(": ")"}


def options_of(log: Logged) -> dict[str, Any]:
    """Options that the log tells, resolved ones before those that were given."""
    options = dict(_given(log.last("arguments") or "{}"))
    for model in ("model_tag", "model"):
        options.setdefault("model", options.pop(model, None))
    options |= dict(_resolved(log.last("engine") or ""))
    if (tokens := log.last("batched_tokens")) is not None:
        options["max_num_batched_tokens"] = int(tokens)
    if (asynchronous := log.last("asynchronous")) is not None:
        options["async_scheduling"] = asynchronous == "enabled"
    if (fitted := log.last("fitted") or log.last("length")) is not None:
        options["max_model_len"] = int(fitted.replace(",", ""))
    if log.last("mode") == "none":
        options["enable_prefix_caching"] = False
    # The memory is the log's own, and names of other releases are not options of this one.
    left_out = {"kv_cache_memory_bytes", "num_gpu_blocks_override", "hf_config_path", "config"}
    known = recorded().named()
    return {
        name: value
        for name, value in options.items()
        if name in known.keys() - left_out and _is_of(known[name], value)
    }


def _is_of(option: Option, value: object) -> bool:
    """Return whether a value is one that vLLM's parser gives for an option."""
    if option.takes == "many":
        return isinstance(value, list)
    if option.takes == "nothing":
        return isinstance(value, bool)
    if option.choices and value not in option.choices:
        return False
    types = {"object": dict | str, "number": int | float, "text": str}.get(option.kind, int)
    return isinstance(value, types) and not isinstance(value, bool)


def _given(text: str) -> Iterator[tuple[str, Any]]:
    """Entries of the dictionary of non-default arguments, as far as they are plain values."""
    place = 1
    while match := _KEY.search(text, place):
        start = match.end()
        end = _end_of_value(text, start)
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            yield match[1], ast.literal_eval(text[start:end])
        place = max(end, start)


def _end_of_value(text: str, start: int) -> int:
    """Index behind a value: of its closing bracket, or of the comma that follows it."""
    depth, index = 0, start
    while index < len(text):
        if text[index] in "'\"":
            quoted = _QUOTED.match(text, index)
            if quoted is None:
                return len(text)
            index = quoted.end()
            continue
        if text[index] in _CLOSING:
            depth += 1
        elif text[index] in _CLOSING.values():
            if depth == 0:
                return index
            depth -= 1
        elif text[index] == "," and depth == 0:
            return index
        index += 1
    return index


def _resolved(text: str) -> Iterator[tuple[str, Any]]:
    """Fields of the engine's configuration."""
    if match := re.match(r"model='([^']+)'", text):
        yield "model", match[1]
    for field, option in _ENGINE.items():
        if match := re.search(rf"\b{field}=([^,]+)", text):
            yield option, _plain(match[1])
    if match := re.search(
        r"speculative_config=SpeculativeConfig\(method='?(\w+)'?, model=(?:'([^']*)'|None), "
        r"num_spec_tokens=(\d+)",
        text,
    ):
        config = {"method": match[1], "num_speculative_tokens": int(match[3])}
        yield "speculative_config", config if match[2] is None else {**config, "model": match[2]}


def _plain(text: str) -> Any:
    text = text.strip().strip("'").removeprefix("torch.")
    named = {"True": True, "False": False, "None": None}
    if text in named:
        return named[text]
    return int(text) if text.isdecimal() and len(text) < _MOST_DIGITS else text
