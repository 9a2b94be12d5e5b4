"""Layers described by hand: the file behind ``--layers``."""

from typing import Annotated, Final

import msgspec

from hybrid_blocks.errors import PlanError
from hybrid_blocks.model.config import MAX_LAYERS, MAX_SIZE
from hybrid_blocks.model.layer import Cache
from hybrid_blocks.model.model import Layer, Model

EXAMPLE: Final = (
    '{"layers": [{"repeat": 8, "pattern": [{"kind": "mamba2", "inner_dim": 8192, "groups": 8, '
    '"heads": 128, "head_dim": 64, "state_dim": 128, "conv_kernel": 4, '
    '"ssm_dtype": "float32"}, {"kind": "full", "kv_heads": 8, "head_dim": 128}]}]}'
)

DESCRIBED: Final = "described"
"""The type of a model that a person described."""

Positive = Annotated[int, msgspec.Meta(ge=1)]


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pattern of layers that repeats; an inner list is one layer with several caches."""

    pattern: list[Cache | list[Cache] | None]
    repeat: Positive = 1


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole model. ``draft`` are the layers that exist only while it speculates."""

    layers: list[Run]
    name: str | None = None
    dtype: str = "bfloat16"
    max_model_len: Positive | None = None
    draft: list[Cache] = []


def decode(text: bytes, source: str) -> Model:
    """Model of a description in JSON."""
    try:
        description = msgspec.json.decode(text, type=Description)
    except msgspec.ValidationError as error:
        raise PlanError(f"{source}: {error}; the form is {EXAMPLE}") from None
    except msgspec.DecodeError as error:
        raise PlanError(f"{source}: not JSON: {error}") from None
    num_layers = sum(run.repeat * len(run.pattern) for run in description.layers)
    if num_layers > MAX_LAYERS:
        raise PlanError(
            f"{source}: {num_layers:,} layers are described, {MAX_LAYERS:,} at most are planned; "
            "lower repeat"
        )
    entries = [
        entry
        for run in description.layers
        if run.pattern
        for _ in range(run.repeat)
        for entry in run.pattern
    ]
    layers = tuple(
        Layer(depth, cache)
        for depth, entry in enumerate(entries)
        for cache in (entry if isinstance(entry, list) else [entry])
        if cache is not None
    )
    if not layers:
        raise PlanError(f"{source}: no layer keeps a cache; the form is {EXAMPLE}")
    for cache in {layer.cache for layer in layers} | set(description.draft):
        for name, value in msgspec.structs.asdict(cache).items():
            if type(value) is int and not 1 <= value <= MAX_SIZE:
                kind = cache.__struct_config__.tag
                raise PlanError(
                    f"{source}: {name} of a {kind} layer is {value}; it is 1 to {MAX_SIZE:,}"
                )
    return Model(
        name=description.name or source,
        model_type=DESCRIBED,
        num_layers=len(entries),
        layers=layers,
        draft_layers=tuple(
            Layer(len(entries) + index, cache, draft=True)
            for index, cache in enumerate(description.draft)
        ),
        dtype=description.dtype,
        max_model_len=description.max_model_len,
    )
