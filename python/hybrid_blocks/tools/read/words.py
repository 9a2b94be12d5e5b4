"""The words of a pasted command, as a shell reads them: variables and the server's arguments."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import PurePath
from typing import Final

import msgspec

from hybrid_blocks.model import PlanError

PASTE: Final = (
    "paste vllm serve MODEL …, python -m vllm.entrypoints.openai.api_server … or docker run … "
    "IMAGE …, with assignments and export before it"
)
LONGEST: Final = 65_536
"""Characters of a command; a longer one is refused, as its words could not be checked by eye."""

_VARIABLE: Final = r"\$(?:(?P<name>[A-Za-z_]\w*)|\{(?P<braced>\w+)(?::?-(?P<default>[^}$`]*))?\})"
_WORKED_OUT: Final = r"(?P<worked_out>`|\$(?=[\w{(@*?!\#-]))"
_TOKEN: Final = re.compile(
    rf"""
      (?P<blank>[ \t\r]++)
    | (?P<continued>\\\r?\n)
    | (?P<redirection>(?:(?<![^\s;&|])\d++|&)?[<>]{{1,3}}&?)
    | (?P<end>[\n;&|]++)
    | (?P<comment>(?<![^\s;&|])\#[^\n]*+)
    | '(?P<single>[^']*+)'
    | "(?P<double>(?:[^"\\]|\\.)*+)"
    | \\(?P<escaped>.|\Z)
    | {_VARIABLE}
    | {_WORKED_OUT}
    | (?P<plain>[^ \t\r\n;&|<>'"\\$`]++|\$)
    """,
    re.VERBOSE | re.DOTALL,
)
_WITHIN_QUOTES: Final = re.compile(
    rf"""
      \\(?P<escaped>["\\$`])
    | (?P<continued>\\\r?\n)
    | {_VARIABLE}
    | {_WORKED_OUT}
    | (?P<plain>[^\\$`]++|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_VARIABLES: Final = ("name", "braced", "default")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_CONTAINERS: Final = ("docker", "podman", "nerdctl")

# Options of ``docker run`` that take no value; every other one takes one.
_DOCKER_SWITCHES: Final = frozenset(
    {
        *("--detach", "--disable-content-trust", "--init", "--interactive", "--no-healthcheck"),
        *("--oom-kill-disable", "--privileged", "--publish-all", "--quiet", "--read-only", "--rm"),
        *("--sig-proxy", "--tty", "--replace", "--help"),
    }
)
_DOCKER_LETTERS: Final = "ditPq"


class Words(msgspec.Struct, frozen=True):
    """Arguments of vLLM's server, and the variables in its environment.

    ``env_file`` tells whether a container also takes variables from a file.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    env_file: bool = False


def find_server(words: Sequence[str]) -> Words:
    """Return the server that a command starts; a single word is a whole script."""
    length = sum(len(word) + 1 for word in words) - 1
    if length > LONGEST:
        raise PlanError(
            f"the command has {length:,} characters, more than {LONGEST:,}; leave out what comes "
            "before and after the server's own command"
        )
    found = _server(words, {}) if len(words) > 1 else _Shell().server("".join(words))
    if found is None:
        raise PlanError(f"no command that starts vLLM's server; {PASTE}")
    return found


class _Shell:
    """A shell's variables, while it reads a script one command after another."""

    def __init__(self) -> None:
        self._variables: dict[str, str] = {}
        self._exported: set[str] = set()
        self._num_expanded = 0

    def server(self, text: str) -> Words | None:
        """Return the first server that a script starts, None without one."""
        for command in self._commands(text):
            if not command:
                continue
            assigned = _assigned(command)
            if len(assigned) == len(command):
                self._variables |= assigned
            elif command[0] == "export":
                self._variables |= assigned
                self._exported |= {word.partition("=")[0] for word in command[1:]}
            else:
                known = self._variables.keys() & self._exported
                found = _server(command, {name: self._variables[name] for name in known})
                if found is not None:
                    return found
        return None

    def _commands(self, text: str) -> Iterator[list[str]]:
        """Split a script into commands; each variable has the value that earlier ones gave it."""
        command: list[str] = []
        parts: list[str] | None = None
        is_target, place = False, 0
        while place < len(text):
            token = _TOKEN.match(text, place)
            if token is None:
                raise PlanError(
                    "the command cannot be read as a shell would: a quote is not closed"
                )
            place = token.end()
            kind = token.lastgroup
            if kind == "continued":
                continue
            if kind in {"blank", "redirection", "end", "comment"}:
                if parts is not None and not is_target:
                    command.append("".join(parts))
                # A redirection takes the next word, which may follow a blank.
                is_target = kind == "redirection" or (is_target and parts is None)
                parts = None
                if kind == "end":
                    yield command
                    command, is_target = [], False
                continue
            texts = [self._text(token)]
            if kind in _VARIABLES and not (parts and _ASSIGNMENT.match(parts[0])):
                texts = texts[0].split()
            for index, part in enumerate(texts):
                if index and parts is not None:
                    command.append("".join(parts))
                    parts = None
                parts = [] if parts is None else parts
                parts.append(part)
        if parts is not None and not is_target:
            command.append("".join(parts))
        yield command

    def _text(self, token: re.Match[str]) -> str:
        kind = token.lastgroup
        if kind == "continued" or kind is None:
            return ""
        if kind == "double":
            return "".join(map(self._text, _WITHIN_QUOTES.finditer(token[kind])))
        if kind in _VARIABLES:
            return self._value(token)
        if kind == "worked_out":
            raise PlanError(
                "the command holds $(…), `…` or another value that a shell works out; write the "
                "value itself"
            )
        return token[kind]

    def _value(self, token: re.Match[str]) -> str:
        """Return the value of a variable; one that is not known stays as it is written."""
        name = token["name"] or token["braced"]
        value = self._variables.get(name) or token["default"]
        if value is None:
            return f"${name}"
        self._num_expanded += len(value)
        if self._num_expanded > LONGEST:
            raise PlanError(
                f"the variables of the command hold more than {LONGEST:,} characters; write out "
                "those that the server needs"
            )
        return value


def _assigned(words: Sequence[str]) -> dict[str, str]:
    matches = map(_ASSIGNMENT.fullmatch, words)
    return {match[1]: match[2] for match in matches if match}


def _server(words: Sequence[str], exported: Mapping[str, str]) -> Words | None:
    """Find the server that one command starts; None where it starts another program."""
    for index, (word, following) in enumerate(zip_longest(words, words[1:], fillvalue="")):
        name = PurePath(word).name
        if name in _CONTAINERS and following in {"run", "create"}:
            return _container(words[index + 2 :], {**exported, **_assigned(words[:index])})
        is_module = following.startswith("vllm.") and following.endswith(".api_server")
        if (name == "vllm" and following == "serve") or (name == "-m" and is_module):
            environment = {**exported, **_assigned(words[:index])}
            return Words(tuple(words[index + 2 :]), environment)
    return None


def _container(words: Sequence[str], exported: Mapping[str, str]) -> Words | None:
    """Find the server of a container; the entry point of vLLM's image is ``vllm serve``."""
    index, entry, variables, env_file = 0, [], dict[str, str](), False
    while index < len(words) and words[index].startswith("-"):
        word = words[index]
        index += 1
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            takes_next = not equals and option not in _DOCKER_SWITCHES
        else:
            letters = word[1:].lstrip(_DOCKER_LETTERS)
            option, value = f"-{letters[:1]}", letters[1:].removeprefix("=")
            takes_next = bool(letters) and not value
        if takes_next:
            value = words[index] if index < len(words) else ""
            index += 1
        if option in {"-e", "--env"}:
            variables |= _assigned([value]) or {
                name: exported[name] for name in [value] if name in exported
            }
        elif option == "--entrypoint":
            entry = [value]
        env_file = env_file or option == "--env-file"
    if index >= len(words):
        raise PlanError("docker run names no image: put it before the server's arguments")
    arguments = [*entry, *words[index + 1 :]]
    found = _server(arguments, variables)
    if found is None and not entry:
        of_image = not arguments or arguments[0].startswith("-") or "vllm" in words[index]
        found = Words(tuple(arguments), variables) if of_image else None
    return None if found is None else msgspec.structs.replace(found, env_file=env_file)
