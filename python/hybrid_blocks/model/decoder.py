"""The decoder in a ``config.json``: its own fields, and values that its configuration class adds.

``class_defaults.json`` describes the class of each ``model_type``: the ``fields`` that the readers
need, its ``aliases`` (a second name of a field) and the type of the ``decoder`` inside it. Where
the file does not describe that decoder, fields in ``around`` go before those of the decoder's
class. A test compares the record with the classes of vLLM and transformers.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec

from hybrid_blocks.model.config import Config


class ClassDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The values that one configuration class brings along."""

    decoder: str | None = None
    aliases: dict[str, str] = {}
    fields: dict[str, object] = {}
    around: dict[str, object] = {}

    @property
    def known(self) -> bool:
        """Whether the class says anything."""
        return self != ClassDefaults()


def defaults_of(model_type: str) -> ClassDefaults:
    """Return the defaults of a ``model_type``; those of an unknown one are empty."""
    return _rows().get(model_type, ClassDefaults())


@cache
def _rows() -> dict[str, ClassDefaults]:
    record = files("hybrid_blocks.model").joinpath("class_defaults.json").read_bytes()
    return msgspec.json.decode(record, type=dict[str, ClassDefaults])


SECTIONS: Final = ("text_config", "llm_config", "language_config", "thinker_config")
"""Under these names a model of several modalities describes its decoder, maybe one in another."""

USE_WINDOW: Final = "use_sliding_window"
"""Classes that do not have this field have a window whatever it says."""


def find(
    fields: Mapping[str, object], name: str, *, with_defaults: bool
) -> tuple[Config, tuple[str, ...]]:
    """Return the fields of the decoder and its types, the closest to it first.

    A field that the decoder leaves out has the default of its class where ``with_defaults``; if
    the class has none, the value that the file gives it around the decoder.
    """
    around: dict[str, object] = {}
    types: tuple[str, ...] = ()
    declared: str | None = None
    while True:
        own = Config(fields, name).text("model_type") or None
        plain = declared and declared.rpartition("/")[2]
        types = tuple(known for known in (own, plain) if known) + types
        # A class inside another may have the type of a class that stands alone, and other values.
        known = tuple(known for known in (own, declared) if known)
        known = known[::-1] if own == plain else known
        row = next((row for row in map(defaults_of, known) if row.known), ClassDefaults())
        declared = row.decoder or (declared if own is None else None)
        section = next((key for key in SECTIONS if isinstance(fields.get(key), Mapping)), None)
        if section is None:
            break
        around |= fields
        fields = fields[section]  # type: ignore[assignment]
    if declared is not None:
        types = (declared.rpartition("/")[2], *types)
        if with_defaults:
            fields = {**row.around, **fields}
        row = defaults_of(declared)
    if row.fields and USE_WINDOW not in row.fields:
        fields = {key: value for key, value in fields.items() if key != USE_WINDOW}
    if with_defaults:
        around |= _with_second_names(row.fields, row)
        fields = _with_second_names(fields, row)
    return Config(fields, name, around), types


def _with_second_names(fields: Mapping[str, object], row: ClassDefaults) -> dict[str, object]:
    """Give each field under both of its names."""
    named = dict(fields)
    for name, other in row.aliases.items():
        for present, absent in ((name, other), (other, name)):
            if present in fields and absent not in fields:
                named[absent] = fields[present]
    return named
