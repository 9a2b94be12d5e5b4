"""The embeddings that transformers' configuration classes fill in where a file is silent.

``python tests/plan/embedding_defaults.py`` writes the record that the package reads.
"""

import inspect
import json
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import hybrid_blocks.model
from hybrid_blocks.model.architecture import READERS
from transformers.models.auto.configuration_auto import (  # type: ignore[attr-defined, unused-ignore]
    CONFIG_MAPPING_NAMES,
    model_type_to_module_name,
)

RECORD: Final = Path(hybrid_blocks.model.__file__).with_name("embedding.json")
_FIELDS: Final = ("vocab_size", "tie_word_embeddings")


def recorded() -> dict[str, dict[str, Any]]:
    """Rows of the types that have a reader, and whose class knows its vocabulary."""
    known = {name: _defaults(_class_of(name)) for name in READERS if name in CONFIG_MAPPING_NAMES}
    return {name: row for name, row in sorted(known.items()) if "vocab_size" in row}


def text() -> str:
    """Return the record as it is written: one line for each type."""
    rows = ",\n".join(f'"{name}": {json.dumps(row)}' for name, row in recorded().items())
    return f"{{\n{rows}\n}}\n"


def _class_of(model_type: str) -> Any:
    """Return transformers' own class, whatever class another package registered for the type."""
    module = import_module(f"transformers.models.{model_type_to_module_name(model_type)}")
    return getattr(module, CONFIG_MAPPING_NAMES[model_type])


def _defaults(config_class: Any) -> dict[str, Any]:
    parameters = inspect.signature(config_class.__init__).parameters
    found = {field: parameters[field].default for field in _FIELDS if field in parameters}
    return {name: value for name, value in found.items() if value is not inspect.Parameter.empty}


if __name__ == "__main__":
    RECORD.write_text(text())
