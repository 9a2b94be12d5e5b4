"""Values of a configuration as JSON: equal ones have one text, in every process."""

import dataclasses
import enum
import json
from collections.abc import Callable, Mapping, Set
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import torch
from pydantic import BaseModel
from transformers import PretrainedConfig

from hybrid_blocks.offload.identity.fingerprint import file_content, names_a_file

# Names of a place, of a library and of what is chosen beside the model: the bytes are the same.
_NOT_THE_MODEL: Final = (
    "_name_or_path",
    "_commit_hash",
    "transformers_version",
    "_attn_implementation_internal",
    "_experts_implementation_internal",
)
_DEEPEST: Final = 64


class UnwritableError(Exception):
    """A value that has no text: its message names the field and the value's type."""


@dataclasses.dataclass(frozen=True)
class Unknown:
    """Files or code by their name alone: other content may stand under it tomorrow."""

    name: str


class Writer:
    """Writes values down.

    ``left_out`` names fields by class. ``instead`` gives by class and field the value that is
    written instead of the field. ``unknown`` collects the names of content that is not known.
    """

    def __init__(
        self,
        left_out: Mapping[str, Set[str]],
        instead: Mapping[tuple[str, str], Callable[[Any], object]],
    ) -> None:
        """Write fields of dataclasses by these two tables."""
        self._left_out = left_out
        self._instead = instead
        self.unknown: list[str] = []

    def write(self, value: object, place: str, depth: int = 0) -> Any:  # noqa: PLR0911 - one a type
        """Return a value that JSON can hold, and that differs where ``value`` does.

        Raises:
            UnwritableError: ``place``, or a field below it, has a value of an unknown type.
        """
        if depth > _DEEPEST:
            raise UnwritableError(f"{place} (over {_DEEPEST} levels deep)")
        if isinstance(value, enum.Enum):
            return [type(value).__qualname__, value.name]
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self._text(value, place)
        if isinstance(value, Unknown):
            self.unknown.append(value.name)
            return ["unknown", value.name]
        if isinstance(value, bytes):
            return ["bytes", value.hex()]
        if isinstance(value, list | tuple):
            return ["list", *(self.write(it, f"{place}[]", depth + 1) for it in value)]
        if isinstance(value, Set):
            return ["set", *sorted((self.write(it, place, depth + 1) for it in value), key=_text)]
        if (fields := self._fields(value)) is not None:
            # An object without a field that counts becomes an empty mapping, without its class.
            return fields and [
                type(value).__qualname__,
                {name: self.write(it, f"{place}.{name}", depth + 1) for name, it in fields.items()},
            ]
        if isinstance(value, Mapping):
            pairs = [
                [self.write(key, place, depth + 1), self.write(it, f"{place}.{key}", depth + 1)]
                for key, it in value.items()
            ]
            return ["map", *sorted(pairs, key=_text)]
        return self._leaf(value, place)

    def _leaf(self, value: object, place: str) -> Any:
        if isinstance(value, torch.dtype | torch.device):
            return ["torch", str(value)]
        if isinstance(value, PurePath):
            return self._text(str(value), place)
        if isinstance(value, np.generic):
            return self.write(value.item(), place)
        if isinstance(value, type):
            return ["type", value.__module__, value.__qualname__]
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise UnwritableError(f"{place} (a {kind})")

    @staticmethod
    def _text(value: str, place: str) -> Any:
        """Take a file by its content: another file may stand under its name tomorrow."""
        if not names_a_file(value):
            return value
        try:
            return ["file", file_content(value)]
        except OSError as error:
            raise UnwritableError(f"{place} ({error})") from None

    def _fields(self, value: object) -> dict[str, object] | None:
        if isinstance(value, type):
            return None
        # A dataclass's fields would leave out attributes from the model's file, and overrides.
        if isinstance(value, PretrainedConfig):
            return {name: it for name, it in vars(value).items() if name not in _NOT_THE_MODEL}
        if dataclasses.is_dataclass(value):
            return self._of_class(value, [field.name for field in dataclasses.fields(value)])
        if isinstance(value, BaseModel):
            return self._of_class(value, list(type(value).model_fields))
        return vars(value) if isinstance(value, SimpleNamespace) else None

    def _of_class(self, value: object, names: list[str]) -> dict[str, object]:
        kind = type(value).__name__
        left_out = self._left_out.get(kind, frozenset())
        fields = {}
        for name in names:
            if name not in left_out:
                instead = self._instead.get((kind, name))
                fields[name] = instead(value) if instead else getattr(value, name, None)
        return fields


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
