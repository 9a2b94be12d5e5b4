"""Values that a ``config.json`` may leave out, because the class that vLLM reads it with has them.

``class_defaults.json`` describes the class of each ``model_type``: the ``fields`` that the readers
need, its ``aliases`` (a second name of a field) and the type of the ``decoder`` inside it. Where
the file does not describe that decoder, fields in ``around`` go before those of the decoder's
class. A test compares the record with the classes of vLLM and transformers.
"""

from functools import cache
from importlib.resources import files

import msgspec


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


def of(model_type: str) -> ClassDefaults:
    """Return the defaults of a ``model_type``; those of an unknown one are empty."""
    return _rows().get(model_type, ClassDefaults())


@cache
def _rows() -> dict[str, ClassDefaults]:
    record = files("hybrid_blocks.model").joinpath("class_defaults.json").read_bytes()
    return msgspec.json.decode(record, type=dict[str, ClassDefaults])
