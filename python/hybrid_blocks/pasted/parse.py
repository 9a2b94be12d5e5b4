"""Values of vLLM's options, read as vLLM's own parser reads them."""

import json
import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Final

import msgspec

from hybrid_blocks.model import PlanError
from hybrid_blocks.pasted import config_file, values
from hybrid_blocks.pasted.options import Option, near, recorded
from hybrid_blocks.pasted.removed import REMOVED, REPLACED

_NEGATIVE: Final = re.compile(r"-\d+(\.\d*)?|-\.\d+")
_LEVEL: Final = "--optimization-level"
_LEVELS: Final = ("0", "1", "2", "3")


class Parsed(msgspec.Struct, frozen=True):
    """Options by name, as far as they were given; the model; flags that the release has not."""

    model: str | None
    values: dict[str, Any]
    removed: tuple[str, ...]


def parse(arguments: Sequence[str]) -> Parsed:
    """Read arguments of ``vllm serve``.

    Raises:
        PlanError: an option that vLLM does not know, or a value that it refuses.

    """
    words = _merge_dotted(_normal(config_file.insert(arguments)))
    found: dict[str, Any] = {}
    models: list[str] = []
    removed: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not _is_option(word):
            models.append(word)
            continue
        option, flag, attached = _find(word)
        if option is None:
            takes_value = REMOVED[flag]
            removed.append(flag)
            if takes_value and attached is None and index < len(words):
                index += not _is_option(words[index])
                while index < len(words) and words[index].isdecimal():
                    index += 1
            continue
        given = [] if attached is None else [attached]
        if attached is None:
            most = {"nothing": 0, "one": 1, "maybe": 1, "many": len(words)}[option.takes]
            while len(given) < most and index < len(words) and not _is_option(words[index]):
                given.append(words[index])
                index += 1
        found[option.name] = values.read(option, flag, given)
    named = found.pop("model", None)
    models += [named] if named is not None else []
    if len(models) > 1:
        raise PlanError(f"the command names two models: {' and '.join(models)}; vLLM takes one")
    return Parsed(models[0] if models else None, found, tuple(removed))


def _is_option(word: str) -> bool:
    name = word.partition("=")[0]
    return name.startswith("-") and len(word) > 1 and " " not in name and not _is_negative(word)


def _is_negative(word: str) -> bool:
    return _NEGATIVE.fullmatch(word) is not None


def _normal(arguments: Sequence[str]) -> list[str]:
    """Dashes for underscores in names, up to the first dot; -O3 written out.

    Raises:
        PlanError: -O without a level, or with a key of the compilation as earlier releases took it.

    """
    words: list[str] = []
    for word, following in zip_longest(arguments, arguments[1:]):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            head, dot, tail = name.partition(".")
            words.append(f"{head.replace('_', '-')}{dot}{tail}{equals}{value}")
        elif word.startswith("-O."):
            raise PlanError(
                f"{word}: vLLM {recorded().release} takes a level behind -O, 0 to 3, and keys of "
                f"the compilation as --compilation-config{word[2:]}"
            )
        elif word.startswith("-O") and word != "-O":
            words += [_LEVEL, word[2:].removeprefix("=")]
        elif word == "-O":
            if following not in _LEVELS:
                given = f"-O {following}" if following else "-O without a level"
                raise PlanError(f"{given}: vLLM takes {', '.join(_LEVELS)} behind -O")
            words.append(_LEVEL)
        else:
            words.append(word)
    return words


def _merge_dotted(words: list[str]) -> list[str]:
    """Write ``--option.key value`` as one JSON object behind all other options."""
    kept: list[str] = []
    merged: dict[str, dict[str, Any]] = {}
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        name, equals, value = word.partition("=")
        if not name.startswith("-") or "." not in name or _is_negative(name):
            kept.append(word)
            continue
        if not equals:
            if index == len(words):
                raise PlanError(f"{name} lacks its value")
            value = words[index]
            index += 1
        if name.endswith("+"):
            name, value = name[:-1], json.dumps(value.split(","))
        option, *keys = name.split(".")
        _put(merged.setdefault(option, {}), keys, values.loose(value))
    for option, content in merged.items():
        kept += [option, json.dumps(content)]
    return kept


def _put(content: dict[str, Any], keys: Sequence[str], value: object) -> None:
    for key in keys[:-1]:
        inner = content.get(key)
        if not isinstance(inner, dict):
            inner = content[key] = {}
        content = inner
    last = content.get(keys[-1])
    if isinstance(last, list) and isinstance(value, list):
        last.extend(value)
    else:
        content[keys[-1]] = value


def _find(word: str) -> tuple[Option | None, str, str | None]:
    """Option of a word, its flag in full, and the value behind ``=``; None if it was removed."""
    by_flag = recorded().by_flag()
    name, equals, value = word.partition("=")
    attached = value if equals else None
    if name in by_flag:
        return by_flag[name], name, attached
    if name in REMOVED:
        return None, name, attached
    if not name.startswith("--"):
        if word[:2] in by_flag:
            return by_flag[word[:2]], word[:2], word[2:]
        raise _unknown(name)
    # Any beginning of a name does, if only one option has it.
    begun = [flag for flag in by_flag if flag.startswith(name)]
    options = {by_flag[flag].name for flag in begun}
    if len(begun) > 1 and len(options) > 1:
        raise PlanError(f"{name} may be {', '.join(sorted(begun)[:4])}; write it out")
    if not begun:
        raise _unknown(name)
    return by_flag[min(begun, key=len)], min(begun, key=len), attached


def _unknown(name: str) -> PlanError:
    following = REPLACED.get(name)
    hint = near(name) if following is None else f"; {following} takes its place"
    return PlanError(f"{name}: vLLM {recorded().release} has no such option{hint}")
