"""``python tests/plan/vllm_options.py``: the options of the installed vLLM's server."""

import argparse
import dataclasses
import enum
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from hybrid_blocks.tools.read.options import Kind, Option, Options, Takes

_TAKES: dict[object, Takes] = {None: "one", "?": "maybe", "+": "many", "*": "many", 0: "nothing"}


def record() -> Options:
    """Read vLLM's own parser."""
    from vllm import __version__  # noqa: PLC0415 - wants vLLM
    from vllm.entrypoints.common.cli_args import make_arg_parser  # noqa: PLC0415
    from vllm.envs import environment_variables  # noqa: PLC0415
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    make: Any = FlexibleArgumentParser  # the constructor has no types
    options = tuple(_options(make_arg_parser(make())._option_string_actions))
    variables = tuple(sorted(it for it in environment_variables if it.startswith("VLLM_")))
    return Options(
        release=".".join(__version__.split(".")[:2]), variables=variables, options=options
    )


def encode(options: Options) -> bytes:
    """Return the record as it is stored: one option a line."""
    lines = [msgspec.json.encode(option).decode() for option in options.options]
    rows = ",\n".join(lines)
    variables = msgspec.json.encode(options.variables).decode()
    head = f'"release":"{options.release}",\n"variables":{variables},\n"options":['
    return f"{{{head}\n{rows}\n]}}\n".encode()


def _options(actions: Mapping[str, argparse.Action]) -> Iterable[Option]:
    # An action's own list leaves out what help does not show.
    flags: dict[argparse.Action, list[str]] = {}
    for flag, action in actions.items():
        flags.setdefault(action, []).append(flag)
    for action, all_flags in flags.items():
        if action.dest == "help":
            continue
        off = tuple(flag for flag in all_flags if _sets_false(action, flag))
        yield Option(
            name=action.dest,
            flags=tuple(flag for flag in all_flags if flag not in off),
            off=off,
            takes=_TAKES[action.nargs],
            kind=_kind(action),
            keys=_keys(action),
            choices=_choices(action.choices or ()),
            default=_default(action.default),
        )


def _sets_false(action: argparse.Action, flag: str) -> bool:
    if action.nargs != 0:
        return False
    namespace = argparse.Namespace()
    action(argparse.ArgumentParser(), namespace, [], flag)
    return getattr(namespace, action.dest) is False


def _kind(action: argparse.Action) -> Kind:
    """Kind of the values that an option's own conversion makes."""
    if action.nargs == 0:
        return "switch"
    convert: Callable[[str], Any] = action.type if callable(action.type) else str
    if _class_of(convert) or isinstance(_converted(convert, '{"a": 1}'), dict):
        return "object"
    kinds: dict[str, Kind] = {"auto": "length", "32k": "count", "7": "integer"}
    for probe, kind in kinds.items():
        if isinstance(_converted(convert, probe), int):
            return kind
    return "number" if isinstance(_converted(convert, "7.5"), float) else "text"


def _converted(convert: Callable[[str], Any], text: str) -> object:
    try:
        return convert(text)
    except (ValueError, TypeError, argparse.ArgumentTypeError):
        return None


def _keys(action: argparse.Action) -> dict[str, tuple[int, ...]]:
    """Fields of the class whose JSON an option takes, with the numbers of those that are enums."""
    of = _class_of(action.type)
    if of is None:
        return {}
    return {
        field.name: tuple(int(one) for one in field.type)
        if isinstance(field.type, type) and issubclass(field.type, enum.IntEnum)
        else ()
        for field in dataclasses.fields(of)
        if field.init
    }


def _class_of(convert: object) -> type | None:
    """Return which of vLLM's own classes a value is JSON of, if it is."""
    cells = getattr(convert, "__closure__", None) or ()
    for one in (convert, *(cell.cell_contents for cell in cells)):
        if getattr(one, "__name__", "") == "parse_dataclass":
            found: type = one.__defaults__[0]
            return found
    return None


def _choices(choices: Iterable[object]) -> tuple[str, ...]:
    names = tuple(str(one) for one in choices if one is not None)
    return tuple(sorted(names)) if isinstance(choices, set) else names


def _default(value: object) -> Any:
    if isinstance(value, bool | int | float | str | None):
        return value
    return list(value) if isinstance(value, list | tuple | set) and not value else "…"


if __name__ == "__main__":
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
    print(encode(record()).decode(), end="")
