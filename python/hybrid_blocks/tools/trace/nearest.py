"""The format that is nearest to a line in none, for the error that refuses the line."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

_KEY = re.compile(r'"([^"\\]+)"\s*:')


_OTHER: Final = {
    b"PAR1": "is Parquet; write it as JSON lines",
    b"PK\x03\x04": "is a zip archive; unpack it",
    b"BZh": "is compressed by bzip2; gzip and zstd are read",
    b"\xfd7zXZ": "is compressed by xz; gzip and zstd are read",
    b"\xff\xfe": "is text in UTF-16; write it in UTF-8",
    b"\xfe\xff": "is text in UTF-16; write it in UTF-8",
}
"""How files begin that are no text in UTF-8, and what to do about them."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The names that a line of a format has, or its header.

    Attributes:
        needed: in every line.
        more: in some lines.
    """

    needed: tuple[str, ...] = ()
    more: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: type[msgspec.Struct], *needed: str) -> "Fields":
        """Return the fields of a record; ``needed`` are required beside those without default."""
        fields = msgspec.structs.fields(record)
        required = tuple(field.encode_name for field in fields if field.required)
        optional = (field.encode_name for field in fields if not field.required)
        return cls((*required, *needed), tuple(name for name in optional if name not in needed))


def columns(header: bytes) -> Fields:
    """Return the columns of a header."""
    return Fields(tuple(header.decode().split(",")))


def describe_other(line: bytes) -> str | None:
    """Say what a file is that no format has; None if its first line tells nothing."""
    if line.strip() == b"{":
        return "has a JSON object in several lines; jq -c . writes each in a line of its own"
    return next((what for begins, what in _OTHER.items() if line.startswith(begins)), None)


def describe_nearest(line: bytes, formats: Mapping[str, Fields]) -> str:
    """Say which format has the most names in common with a line, and which names it lacks."""
    text = line.decode(errors="replace").strip()
    found = set(_KEY.findall(text) if text.startswith("{") else text.replace('"', "").split(","))

    def likeness(name: str) -> tuple[int, int]:
        fields = formats[name]
        known = found.intersection(fields.needed + fields.more)
        return len(known), -len(set(fields.needed) - found)

    nearest = max(formats, key=likeness)
    if not likeness(nearest)[0]:
        return "It has no field of one"
    missing = [name for name in formats[nearest].needed if name not in found]
    if not missing:
        return f"The nearest is {nearest}, in this order: {','.join(formats[nearest].needed)}"
    return f"The nearest is {nearest}, without {', '.join(missing)}"
