"""Layers with recurrent states that run piece by piece and leave prefill checkpoints."""

import inspect
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from importlib.resources import files
from typing import Any, Final

from vllm.compilation.breakable_cudagraph import eager_break_during_capture
from vllm.forward_context import get_forward_context
from vllm.platforms import current_platform

from hybrid_blocks.vllm.swap import replace
from hybrid_blocks.vllm.worker.kernel_copies import copy_layer
from hybrid_blocks.vllm.worker.pieces import ATTRIBUTE

METADATA: Final = "attn_metadata_i"
"""Argument by which functions of vLLM's CPU engine get a layer's metadata."""

_IN_PIECES: Final = "hybrid_blocks_in_pieces"
"""Attribute of methods and functions that run in pieces."""

_UNDO: list[Callable[[], None]] = []


@dataclass(frozen=True, slots=True)
class Row:
    """A class of layers and what of it runs piece by piece."""

    methods: tuple[str, ...]
    tokens: Mapping[str, int]
    projects: bool = False
    drafts: bool = True
    on_cpu: tuple[str, ...] = ()


@cache
def rows() -> Mapping[str, Row]:
    """Return the covered classes by ``module:name``."""
    listed = tomllib.loads((files(__package__) / "state_layers.toml").read_text())
    return {
        row["class"]: Row(
            tuple(row["methods"]),
            row["tokens"],
            row.get("projects", False),
            row.get("drafts", True),
            tuple(row.get("on_cpu", ())),
        )
        for row in listed["covered"]
    }


def row_of(layer: Any) -> Row | None:
    """Return the row of a layer's very class; a derived class may compute elsewhere."""
    kind = type(layer)
    return rows().get(f"{kind.__module__}:{kind.__qualname__}")


def install(layer: Any, row: Row) -> None:
    """Let a layer's class, and what stands for it on a CPU, run piece by piece where pieces are."""
    for name in row.methods:
        _replace(type(layer), name, row)
    if current_platform.is_cpu():
        for function in row.on_cpu:
            module, _, name = function.partition(":")
            _replace(import_module(module), name, row)


def _replace(owner: Any, name: str, row: Row) -> None:
    real = getattr(owner, name)
    if hasattr(real, _IN_PIECES):
        return
    inner = inspect.unwrap(real)
    ours: Any = in_pieces(inner, row.tokens)
    if inner is not real:
        # The graph of a step breaks around the whole method.
        ours = eager_break_during_capture(ours)
    setattr(ours, _IN_PIECES, True)
    _UNDO.append(replace(owner, name, ours))


def uninstall() -> None:
    """Put vLLM's own methods and functions back."""
    while _UNDO:
        _UNDO.pop()()


def in_pieces(real: Callable[..., Any], tokens: Mapping[str, int]) -> Callable[..., Any]:
    """Return a layer's method that runs once a piece, where the step has pieces for the layer.

    ``tokens`` names the arguments that are cut, and the axis of tokens of each. All of them are
    views, so the method leaves its results where the caller looks for them.
    """
    names = tuple(inspect.signature(real).parameters)

    @wraps(real)
    def run(*args: Any, **kwargs: Any) -> Any:
        layers: Any = get_forward_context().attn_metadata
        layer = args[0]
        whole = layers.get(layer.prefix) if isinstance(layers, dict) else None
        pieces = getattr(whole, ATTRIBUTE, None)
        if pieces is None:
            return real(*args, **kwargs)
        given = dict(zip(names, args, strict=False)) | kwargs
        try:
            for piece in pieces:
                layers[layer.prefix] = piece.metadata
                own = {name: _cut(given[name], axis, piece.tokens) for name, axis in tokens.items()}
                if METADATA in given:
                    own[METADATA] = piece.metadata
                real(**given | own)
                if piece.src is not None:
                    copy_layer(layer.kv_cache, piece.src, piece.dst)
                    piece.step.note_written()
        finally:
            layers[layer.prefix] = whole
        return None

    return run


def _cut(tensor: Any, axis: int, tokens: slice) -> Any:
    return tensor[tokens] if axis == 0 else tensor[(slice(None),) * axis + (tokens,)]
