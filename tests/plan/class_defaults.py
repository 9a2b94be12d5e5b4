"""Defaults of vLLM's and transformers' classes for fields that a ``config.json`` leaves out.

``python tests/plan/class_defaults.py`` writes the record that the package reads.
"""

import ast
import dataclasses
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hybrid_blocks.model
import registry_configs
from hybrid_blocks.model.architecture import READERS
from hybrid_blocks.model.decoder import SECTIONS
from vllm.transformers_utils.config import get_hf_text_config

PACKAGE = Path(hybrid_blocks.model.__file__).parent
RECORD = PACKAGE / "class_defaults.json"

Row = dict[str, Any]


def recorded() -> dict[str, Row]:
    """Rows by ``model_type``: what the readers know, vLLM's registry, and the decoders of both."""
    fields = fields_of_readers()
    rows: dict[str, Row] = {}
    classes = {name: _class_of(name) for name in READERS.keys() | registry_configs.model_types()}
    while queue := sorted(classes.keys() - rows.keys()):
        for model_type in queue:
            row: Row = {}
            rows[model_type] = row
            if (config_class := classes[model_type]) is None:
                continue
            row |= _row(config_class, fields)
            if (decoder := _decoder(config_class)) is not None:
                name = decoder.model_type or type(decoder).__name__
                if _class_of(name) not in (None, type(decoder)):
                    name = f"{model_type}/{name}"
                if classes.get(name) is None:
                    classes[name] = type(decoder)
                    rows.pop(name, None)
                row["decoder"] = name
                row["around"] = _changed(decoder, fields)
    return {name: cleaned for name, row in sorted(rows.items()) if (cleaned := _filled(row))}


def _filled(row: Row) -> Row:
    return {key: value for key, value in row.items() if value}


def _decoder(config_class: Any) -> Any:
    """Return the decoder inside a default instance of a class, None where there is none."""
    try:
        config = config_class()
        decoder = get_hf_text_config(config)
    except Exception:  # noqa: BLE001 - such a class has no default instance
        return None
    if decoder is not config:
        return decoder
    sections = (getattr(config, section, None) for section in SECTIONS)
    return next((found for found in sections if hasattr(found, "to_dict")), None)


def _changed(decoder: Any, fields: frozenset[str]) -> Row:
    """Fields of a decoder that no file describes which are not its own class's defaults."""
    default, own = vars(type(decoder)()), vars(decoder)
    derived = {name for name, value in _defaults(type(decoder)) if value is None}
    return {
        name: own[name]
        for name in sorted(fields & own.keys())
        if isinstance(own[name], int | str | list | None)
        and (own[name] != default.get(name) or (name in derived and own[name] is not None))
    }


def fields_of_readers() -> frozenset[str]:
    """Every word in a string of the readers: the names of all fields that they ask for."""
    names = ("config.py", "load.py", "mtp.py")
    sources = [*PACKAGE.glob("architecture/*.py"), *(PACKAGE / name for name in names)]
    return frozenset(
        word
        for source in sources
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for word in node.value.split("|")
        if word.isidentifier() and word != "model_type"
    )


def _class_of(model_type: str) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: PLC0415
    from vllm.transformers_utils.config import _CONFIG_REGISTRY  # noqa: PLC0415

    if model_type in _CONFIG_REGISTRY:
        return _CONFIG_REGISTRY[model_type]
    if model_type not in CONFIG_MAPPING:
        return None
    return CONFIG_MAPPING[model_type]  # the mapping's get() finds nothing


def _row(config_class: Any, fields: frozenset[str]) -> Row:
    named = config_class.attribute_map.items()
    aliases = {name: other for name, other in named if name in fields and other != name}
    wanted = fields | set(aliases.values())
    defaults = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in _defaults(config_class)
        if name in wanted and isinstance(value, int | str | list | tuple) and value != "auto"
    }
    return {"aliases": aliases, "fields": dict(sorted(defaults.items()))}


def _defaults(config_class: Any) -> Iterator[tuple[str, object]]:
    """Defaults of a dataclass, or of the ``__init__`` that a class writes by hand."""
    for field in dataclasses.fields(config_class):
        if field.default is not dataclasses.MISSING:
            yield field.name, field.default
        elif field.default_factory is not dataclasses.MISSING:
            yield field.name, field.default_factory()
    for name, parameter in inspect.signature(config_class.__init__).parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            yield name, parameter.default


def text() -> str:
    """Return the record as it is written: one line for each type."""
    rows = ",\n".join(f'"{name}": {json.dumps(row)}' for name, row in recorded().items())
    return f"{{\n{rows}\n}}\n"


if __name__ == "__main__":
    RECORD.write_text(text())
