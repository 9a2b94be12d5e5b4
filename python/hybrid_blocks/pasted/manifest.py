"""Manifests, values of Helm and recipes of images: the command that serves."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

_KEYS: Final = re.compile(r"^\s*(?:- +)?(?:command|args|entrypoint|modelURL)\s*:", re.MULTILINE)
_SERVER: Final = re.compile(r"vllm|api_server|sglang")
_CAPITAL: Final = re.compile(r"[A-Z]")
_CHARTS_OWN: Final = frozenset({"v0", "v1"})
_RECIPE: Final = re.compile(r"^(FROM|ENV|ENTRYPOINT|CMD)[ \t]+((?:\\\r?\n|.)+)", re.MULTILINE)


def command_of(text: str) -> list[str] | None:
    """Return the words of the container whose words or image name an engine, else of the first one.

    None where the text is no manifest, or PyYAML is missing.
    """
    recipe = dict(_RECIPE.findall(text))
    if "FROM" in recipe and not recipe.keys().isdisjoint({"ENTRYPOINT", "CMD"}):
        variables = [shlex.split(line)[0] for name, line in _RECIPE.findall(text) if name == "ENV"]
        given = [_exec_form(recipe[name]) for name in ("ENTRYPOINT", "CMD") if name in recipe]
        container = {"image": recipe["FROM"].split()[0], "environment": variables}
        return _words(container, dict(zip(("command", "args"), given, strict=False)))
    if _KEYS.search(text) is None or find_spec("yaml") is None:
        return None
    yaml = import_module("yaml")
    try:
        found = [words for part in yaml.safe_load_all(text) for words in _commands(part)]
    except yaml.YAMLError:
        return None
    serving = (words for words in found if _SERVER.search(" ".join(words)))
    return next(serving, found[0] if found else None)


def _exec_form(text: str) -> str | list[Any]:
    """Words of a list, or a line that a shell reads."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return text.replace("\\\n", " ")
    return found if isinstance(found, list) else text


def _commands(part: object) -> Iterator[list[str]]:
    if isinstance(part, list):
        for item in part:
            yield from _commands(item)
    elif isinstance(part, Mapping):
        given = {name: part[name] for name in ("entrypoint", "command", "args") if part.get(name)}
        if given and all(isinstance(value, str | list) for value in given.values()):
            yield _words(part, given)
        if isinstance(part.get("modelURL"), str):
            yield _of_values(part)
        for value in part.values():
            if isinstance(value, Mapping | list):
                yield from _commands(value)


def _of_values(model: Mapping[str, Any]) -> list[str]:
    """Words of a model of vLLM's production stack: `vllmConfig` names options in camel case."""
    words = [*_variables(model.get("env")), "vllm", "serve", model["modelURL"]]
    config = model.get("vllmConfig")
    for name, value in config.items() if isinstance(config, Mapping) else ():
        flag = _CAPITAL.sub(lambda match: f"-{match[0].lower()}", str(name))
        if flag == "extra-args":
            words += _split(value)
        elif isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None and name not in _CHARTS_OWN:
            words.append(f"--{flag}={value}")
    return words


def _words(container: Mapping[str, Any], given: Mapping[str, str | list[Any]]) -> list[str]:
    """Words as they would stand on a command line; of an image's own command as ``docker run``."""
    words = [word for value in given.values() for word in _split(value)]
    variables = _variables(container.get("environment") or container.get("env"))
    image = container.get("image")
    if image is None or _SERVER.search(" ".join(words)):
        return [*variables, *words]
    options = [word for variable in variables for word in ("-e", variable)]
    return ["docker", "run", *options, str(image), *words]


def _split(value: str | list[Any]) -> list[str]:
    return shlex.split(value) if isinstance(value, str) else [str(word) for word in value]


def _variables(given: object) -> list[str]:
    if isinstance(given, Mapping):
        return [f"{name}={value}" for name, value in given.items() if value is not None]
    found = []
    for item in given if isinstance(given, list) else ():
        if isinstance(item, str) and "=" in item:
            found.append(item)
        elif isinstance(item, Mapping) and "value" in item:
            found.append(f"{item.get('name')}={item['value']}")
    return found
