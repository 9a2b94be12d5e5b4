"""The model that a command or a log names."""

from collections.abc import Mapping
from typing import Any

from hybrid_blocks.model import Model, PlanError, load_model


def find_model(name: str, overrides: Mapping[str, Any] | None = None) -> Model:
    """Return the model of a name, a file or a folder.

    Raises:
        PlanError: no such model; says what to give.

    """
    try:
        return load_model(name, overrides)
    except PlanError as error:
        model, at, revision = name.partition("@")
        if at:
            raise PlanError(
                f"{name}: vLLM takes no revision in the name; write {model} --revision {revision}"
            ) from None
        if "neither a file" not in str(error):
            raise
        hint = "its config.json or a name can stand before -- or --log"
        raise PlanError(f"{error} ({hint})") from None
