"""``--config FILE``: options in a file of YAML, as vLLM reads them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from hybrid_blocks.inputs import open_input
from hybrid_blocks.model import PlanError
from hybrid_blocks.tools.read.options import recorded, shown

LARGEST: Final = 65_536
"""Bytes of a file; a larger one is refused."""


def split(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """Return the arguments without ``--config``, and its file, None without one.

    Raises:
        PlanError: two files, or none behind the flag.

    """
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
    """Put a file's options before those of the command, which then count.

    Raises:
        PlanError: a file that cannot be read, or holds no options. Its content is not repeated.

    """
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
        has_aliases = any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text))
        content: object = None if has_aliases else yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, ArithmeticError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" (line {mark.line + 1})" if mark else ""
        raise PlanError(f"--config {shown(name)} is not YAML that can be read{place}") from None
    if has_aliases:
        raise PlanError(f"--config {shown(name)}: aliases are not read; write their values out")
    return content


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
