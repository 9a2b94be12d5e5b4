"""Arguments of ``vllm serve``, read as vLLM's own parser reads them."""

import json
import re
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, Final, TypeVar

import msgspec

from hybrid_blocks.model import PlanError
from hybrid_blocks.tools.read import effects, options, values
from hybrid_blocks.tools.read.options import Option, recorded, shown, unknown

Made = TypeVar("Made")

_NEGATIVE: Final = re.compile(r"-\d+(\.\d*)?|-\.\d+")
_KEYS: Final = re.compile(r"^[^/]*@|[?#].*", re.S)
_VARIABLE: Final = re.compile(r"\$\{?\w+")
_LEVEL: Final = "--optimization-level"
_LEVELS: Final = ("0", "1", "2", "3")


class Parsed(msgspec.Struct, frozen=True):
    """Options by name, as far as they were given, and the model."""

    model: str | None
    values: dict[str, Any]


def read_arguments(arguments: Sequence[str], make: Callable[[Parsed], Made]) -> Made:
    """Return what ``make`` makes of arguments, with those in the file of ``--config``."""
    rest, file = options.split(arguments)
    if file is None:
        return make(parse(rest))
    words = options.insert(rest, file)
    try:
        return make(parse(words))
    except PlanError as error:
        reason = str(error)
    try:
        make(parse(rest))
    except PlanError as error:
        if str(error) == reason:
            raise
    raise PlanError(
        f"--config {shown(file)}: the command cannot be planned with the options of this file; "
        "write them out in the command to see why"
    )


def parse(arguments: Sequence[str]) -> Parsed:
    """Read arguments of ``vllm serve`` without ``--config``."""
    words = _merge_dotted(_normal(arguments))
    found: dict[str, Any] = {}
    models: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not _is_option(word):
            models.append(word)
            continue
        option, flag, attached = _find(word)
        given = [] if attached is None else [attached]
        if attached is None:
            most = {"nothing": 0, "one": 1, "maybe": 1, "many": len(words)}[option.takes]
            while len(given) < most and index < len(words) and not _is_option(words[index]):
                given.append(words[index])
                index += 1
        found[option.name] = _value(option, flag, given)
    named = found.pop("model", None)
    models += [named] if named is not None else []
    _check_variables("the model", models)
    if len(models) > 1:
        raise PlanError(
            "a second word that is no option stands beside the model; quote a value that holds "
            "blanks, and name one model"
        )
    return Parsed(_without_keys(models[0]) if models else None, found)


def _without_keys(model: str) -> str:
    """Leave out the parts of a model's address that may hold keys: a user and a query."""
    scheme, separator, rest = model.partition("://")
    return scheme + separator + _KEYS.sub("", rest) if separator else model


def _value(option: Option, flag: str, given: Sequence[str]) -> Any:
    """Convert an option's words; an unknown variable is refused where the plan needs its value."""
    if option.name not in effects.SILENT:
        _check_variables(flag, given)
    elif any(map(_VARIABLE.search, given)):
        return list(given) if option.takes == "many" else given[0]
    return values.read(option, flag, given)


def _check_variables(flag: str, given: Sequence[str]) -> None:
    for text in given:
        if match := _VARIABLE.search(text):
            name = shown(match[0])
            raise PlanError(f"{flag}: the value of {name} is not known; write it out")


def _is_option(word: str) -> bool:
    name = word.partition("=")[0]
    return name.startswith("-") and len(word) > 1 and " " not in name and not _is_negative(word)


def _is_negative(word: str) -> bool:
    return _NEGATIVE.fullmatch(word) is not None


def _normal(arguments: Sequence[str]) -> list[str]:
    """Dashes for underscores in names, up to the first dot; -O3 written out."""
    words: list[str] = []
    for word, following in zip_longest(arguments, arguments[1:]):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            head, dot, tail = name.partition(".")
            words.append(f"{head.replace('_', '-')}{dot}{tail}{equals}{value}")
        elif word.startswith("-O."):
            raise PlanError(
                f"{shown(word)}: vLLM {recorded().release} takes a level behind -O, 0 to 3, and "
                f"keys of the compilation as --compilation-config{shown(word[2:])}"
            )
        elif word.startswith("-O") and word != "-O":
            words += [_LEVEL, word[2:].removeprefix("=")]
        elif word == "-O":
            if following not in _LEVELS:
                given = f"-O {shown(following)}" if following else "-O without a level"
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
                raise PlanError(f"{shown(name)} lacks its value")
            value = words[index]
            index += 1
        if name.endswith("+"):
            name, value = name[:-1], json.dumps(value.split(","))
        option, *keys = name.split(".")
        if len(keys) > values.DEEPEST:
            raise PlanError(f"{shown(name)}: more than {values.DEEPEST} keys")
        _put(merged.setdefault(option, {}), keys, values.loose(value))
    for option, content in merged.items():
        values.check_nested(shown(option), content)
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


def _find(word: str) -> tuple[Option, str, str | None]:
    """Option of a word, its flag in full, and the value behind ``=``."""
    by_flag = recorded().by_flag
    name, equals, value = word.partition("=")
    attached = value if equals else None
    if name in by_flag:
        return by_flag[name], name, attached
    if not name.startswith("--"):
        if word[:2] in by_flag:
            return by_flag[word[:2]], word[:2], word[2:]
        raise PlanError(unknown(name))
    # Any beginning of a name does, if only one option has it.
    begun = [flag for flag in by_flag if flag.startswith(name)]
    options = {by_flag[flag].name for flag in begun}
    if len(begun) > 1 and len(options) > 1:
        raise PlanError(f"{name} may be {', '.join(sorted(begun)[:4])}; write it out")
    if not begun:
        raise PlanError(unknown(name))
    return by_flag[min(begun, key=len)], min(begun, key=len), attached
