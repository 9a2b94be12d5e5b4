"""The recorded options of vLLM's server, and those that ``--config FILE`` gives in YAML."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, cached_property
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from hybrid_blocks.inputs import open_input
from hybrid_blocks.model import PlanError

Kind = Literal["switch", "text", "integer", "count", "length", "number", "object"]
Takes = Literal["nothing", "one", "maybe", "many"]

_ELSEWHERE: Final = {
    "--tp": "--tensor-parallel-size",
    "--pp": "--pipeline-parallel-size",
    "--dp": "--data-parallel-size",
    "--context-length": "--max-model-len",
    "--ctx-size": "--max-model-len",
    "--rope-scaling": "--hf-overrides",
    "--rope-theta": "--hf-overrides",
    "--speculative-model": "--speculative-config",
    "--num-speculative-tokens": "--speculative-config",
}
"""Flags of older releases and of other programs, and vLLM's option for the same thing."""

_SHOWN: Final = 100


class Option(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One option.

    ``flags`` set it, ``off`` set a switch to false. A ``count`` may end in k (1,000) or K (1,024),
    a ``length`` may also be ``auto``; an ``object`` is JSON. Where that is an object of one of
    vLLM's classes, ``keys`` are its fields, each with the numbers that it takes if it takes some.
    """

    name: str
    flags: tuple[str, ...]
    off: tuple[str, ...] = ()
    takes: Takes = "one"
    kind: Kind = "text"
    choices: tuple[str, ...] = ()
    keys: dict[str, tuple[int, ...]] = {}
    default: Any = None

    @property
    def flag(self) -> str:
        """The flag that errors name."""
        return max(self.flags, key=len)


class Options(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All options and environment variables of one release."""

    release: str
    variables: tuple[str, ...]
    options: tuple[Option, ...]

    def named(self) -> dict[str, Option]:
        """Return the options by their names."""
        return {option.name: option for option in self.options}

    @cached_property
    def by_flag(self) -> dict[str, Option]:
        """The options by each of their flags."""
        return {flag: option for option in self.options for flag in (*option.flags, *option.off)}


@cache
def recorded() -> Options:
    """Return what ``tests/plan/vllm_options.py`` recorded."""
    text = files("hybrid_blocks.tools.read").joinpath("options.json").read_bytes()
    return msgspec.json.decode(text, type=Options)


def unknown(flag: str) -> str:
    """Say that vLLM has no such option, and which one comes near it.

    Behind one dash a value may follow a letter: it is not repeated.
    """
    known = [known for known in recorded().by_flag if known.startswith("--")]
    near = get_close_matches(flag, known, n=3)
    if flag in _ELSEWHERE:
        near = [_ELSEWHERE[flag]]
    if not (near or flag.startswith("--")):
        flag = f"{flag[:2]}…"
    hint = f"; near it: {', '.join(near)}" if near else ""
    return f"{shown(flag)}: vLLM {recorded().release} has no such option{hint}"


def shown(value: object) -> str:
    """Return a value for an error, cut off where it is long."""
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


LARGEST: Final = 65_536
"""Bytes of a file; a larger one is refused."""

MOST_DEEP: Final = 100
"""Lists and mappings in each other; a deeper file is refused."""


def split(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """Return the arguments without ``--config``, and its file, None without one."""
    rest: list[str] = []
    files: list[str] = []
    words = iter(arguments)
    for word in words:
        flag, equals, name = word.partition("=")
        if flag == "--config":
            files.append(name if equals else next(words, ""))
        else:
            rest.append(word)
    if len(files) > 1:
        raise PlanError("--config is given twice; vLLM takes one file")
    if "" in files:
        raise PlanError("--config lacks its file")
    return rest, files[0] if files else None


def insert(arguments: Sequence[str], file: str) -> list[str]:
    """Put a file's options before those of the command, which then count."""
    model = [word for word in arguments[:1] if not word.startswith("-")]
    read = [
        word
        for option, given in _read(file).items()
        if not (model and option == "model")
        for word in _words(str(option), given)
    ]
    return [*model, *read, *arguments[len(model) :]]


def _read(name: str) -> Mapping[Any, Any]:
    if find_spec("yaml") is None:
        raise PlanError(
            f"--config {shown(name)} is YAML: pip install pyyaml, or write its options out"
        )
    try:
        content = _content(name)
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        raise PlanError(f"--config {shown(name)}: {reason}") from None
    if not isinstance(content, Mapping):
        raise PlanError(f"--config {shown(name)} holds no options: write NAME: VALUE on each line")
    return content


def _content(name: str) -> object:
    with open_input(Path(name)) as file:
        text = file.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise PlanError(f"--config {shown(name)}: the file is larger than {LARGEST:,} bytes")
    yaml = import_module("yaml")
    try:
        has_aliases = _has_aliases(yaml.parse(text))
        content: object = None if has_aliases else yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, ArithmeticError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" (line {mark.line + 1})" if mark else ""
        raise PlanError(f"--config {shown(name)} is not YAML that can be read{place}") from None
    if has_aliases:
        raise PlanError(f"--config {shown(name)}: aliases are not read; write their values out")
    return content


def _has_aliases(events: Iterable[Any]) -> bool:
    """Whether YAML repeats a value by its name.

    Raises:
        RecursionError: lists and mappings lie deeper in each other than options do. PyYAML needs
            quadratic time for those.
    """
    depth = 0
    for event in events:
        kind = type(event).__name__
        if kind == "AliasEvent":
            return True
        depth += kind.endswith("StartEvent")
        depth -= kind.endswith("EndEvent")
        if depth > MOST_DEEP:
            raise RecursionError(f"deeper than {MOST_DEEP}")
    return False


def _words(option: str, given: object) -> Iterator[str]:
    flag = f"--{option.replace('_', '-')}"
    if isinstance(given, bool):
        off = f"--no-{flag[2:]}"
        if given or off in recorded().by_flag:
            yield flag if given else off
    elif isinstance(given, list):
        if given:
            yield flag
            yield from map(str, given)
    else:
        yield flag
        yield json.dumps(given, default=str) if isinstance(given, dict) else str(given)
