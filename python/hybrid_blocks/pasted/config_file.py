"""``--config FILE``: options in a file of YAML, as vLLM reads them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hybrid_blocks.inputs import read_input
from hybrid_blocks.model import PlanError
from hybrid_blocks.pasted.options import recorded


def insert(arguments: Sequence[str]) -> list[str]:
    """Put a file's options before those of the command, which then count.

    Raises:
        PlanError: two files; or one that cannot be read, or holds no options.

    """
    words = list(arguments)
    places = [index for index, word in enumerate(words) if word.partition("=")[0] == "--config"]
    if not places:
        return words
    if len(places) > 1:
        raise PlanError("--config is given twice; vLLM takes one file")
    place = places[0]
    _, equals, name = words[place].partition("=")
    if not equals:
        if place + 1 == len(words):
            raise PlanError("--config lacks its file")
        name = words[place + 1]
    rest = words[:place] + words[place + (1 if equals else 2) :]
    model = [word for word in rest[:1] if not word.startswith("-")]
    read = [
        word
        for option, given in _read(name)
        if not (model and option == "model")
        for word in _words(option, given)
    ]
    return [*model, *read, *rest[len(model) :]]


def _read(name: str) -> Iterator[tuple[str, Any]]:
    if find_spec("yaml") is None:
        raise PlanError(f"--config {name} is YAML: pip install pyyaml, or write its options out")
    yaml = import_module("yaml")
    try:
        content = yaml.safe_load(read_input(Path(name)).decode())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise PlanError(f"--config {name}: {reason}") from None
    if not isinstance(content, Mapping):
        raise PlanError(f"--config {name} holds no options: write NAME: VALUE on each line")
    for option, given in content.items():
        yield str(option).replace("_", "-"), given


def _words(option: str, given: object) -> list[str]:
    flag = f"--{option}"
    if isinstance(given, bool):
        off = f"--no-{option}"
        return [flag] if given else [off] if off in recorded().by_flag() else []
    if isinstance(given, list):
        return [flag, *map(str, given)] if given else []
    return [flag, json.dumps(given) if isinstance(given, dict) else str(given)]
