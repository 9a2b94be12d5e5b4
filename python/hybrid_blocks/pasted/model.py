"""The model that a command or a log names."""

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

import msgspec

from hybrid_blocks.model import Model, PlanError, load_model
from hybrid_blocks.model.weights import bits_of_name, with_bits

_WEIGHTS: Final = re.compile(
    r"[-_.](?:fp8|nvfp4|mxfp4|fp4|int[48]|awq|gptq|w\d+a\d+|bnb|gguf|quantized|autoround|qat|exl\d|"
    r"\dbit|mlx|dynamic)\b.*",
    re.IGNORECASE,
)


def find_model(name: str, overrides: Mapping[str, Any] | None = None) -> tuple[Model, list[str]]:
    """Return the model of a name, a file or a folder, and notes for the reader.

    Where the name is not known, what it says of the weights' format is left out.

    Raises:
        PlanError: no such model; says what to give.

    """
    try:
        return load_model(name, overrides), []
    except PlanError as error:
        base = _WEIGHTS.sub("", PurePath(name).name)
        if base == PurePath(name).name:
            raise PlanError(f"{error} (its config.json or a name can stand before --)") from None
        try:
            model = load_model(base, overrides)
        except PlanError:
            raise PlanError(f"{error} (its config.json or a name can stand before --)") from None
    ending = PurePath(name).name.removeprefix(base)
    weights = with_bits(model.weights, bits_of_name(ending))
    return msgspec.structs.replace(model, weights=weights), [
        f"{name} is planned as {model.name}: other weights over the same layers; give "
        "--kv-cache-dtype if its config.json chooses a type for the cache"
    ]
