"""The words of a pasted command: where vLLM's own arguments begin."""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Final, NamedTuple

import msgspec

from hybrid_blocks.model import PlanError
from hybrid_blocks.pasted.manifest import command_of
from hybrid_blocks.pasted.options import Engine

READ: Final = (
    "read are: vllm serve MODEL …, python -m vllm.entrypoints.openai.api_server …, python -m "
    "sglang.launch_server …, and docker run … IMAGE … around them"
)

_MODULES: Final = (["vllm.entrypoints.openai.api_server"], ["vllm.entrypoints.api_server"])
_MAIN_MODULES: Final = (["vllm.entrypoints.cli.main"], ["vllm"])
_SCRIPTS: Final[dict[str, "Engine"]] = {"api_server.py": "vLLM", "launch_server.py": "SGLang"}
_CONTAINERS: Final = ("docker", "podman", "nerdctl")
_SHELLS: Final = ("bash", "sh", "zsh", "dash")
_SEPARATORS: Final = ("|", "|&", "||", "&&", "&", ";")
_CONTINUATION: Final = re.compile(r"[\\^`][ \t]*\r?\n|\\[ \t]+(?=-)")
_LIST: Final = re.compile(r"^[ \t]*(?:- )?(?:command|args|CMD|ENTRYPOINT)\b:?[ \t]*", re.MULTILINE)
_TYPESET: Final = str.maketrans("\u2018\u2019\u201c\u201d\u00a0", "''\"\" ")
_DASH: Final = re.compile(r"(?:(?<=\s)|^)[\u2013\u2014](?=[a-z])")
_ASSIGNMENT: Final = re.compile(r"(?:-e|--env=|Environment=)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_REDIRECTION: Final = re.compile(r"(?:(?:\d|&)?>>?|<(?=/|$))(&\d|.+)?")
_VARIABLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^}]*)|[^}]*)\}|\([^)]*\)?)")
_FENCE: Final = re.compile(r"^[ \t]*```.*$", re.MULTILINE)
_PROMPT: Final = re.compile(
    r"^[ \t]*(?:\(\S+\) )?(?:\[[^\]\n]*\]|\S*[@:~]\S*)#[ \t]+|^!(?=[a-z])", re.MULTILINE
)
_PIECE: Final = re.compile(r"""\\.|'[^']*'|"(?:[^"\\]|\\.)*"|#[^\n]*|\n|.""", re.DOTALL)
_GOES_ON: Final = re.compile(r"\s*(?:[-{'\"#]|$)")
_WANTS_MORE: Final = re.compile(r"(?:serve|api_server|launch_server|\\)\s*$")

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
    """Arguments of an engine's server, and the variables that were set for it."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    engine: Engine = "vLLM"


class _Found(NamedTuple):
    """Words before a server's arguments, and these; None where no server is started."""

    before: list[str]
    arguments: list[str] | None = None
    engine: Engine = "vLLM"


def find_arguments(words: Sequence[str]) -> Words:
    """Return the server's arguments within a command, as a shell or a container would pass them.

    A single word with blanks in it is read as a shell would. Pipes, redirections and stray
    continuation signs are left out.

    Raises:
        PlanError: no command of a server; or a quote that is not closed, or a shell variable
            whose value is not known.

    """
    if len(words) == 1:
        words = _split(words[0])
    segments = _segments(words)
    if not any(segments):
        raise PlanError(f"no command follows --; {READ}")
    environment: dict[str, str] = {}
    for segment in segments:
        found = _server(segment)
        for word in found.before:
            if match := _ASSIGNMENT.fullmatch(word):
                environment[match[1]] = match[2]
        if found.arguments is not None:
            words = _expanded(found.arguments, environment)
            return Words(tuple(words), environment, found.engine)
    raise _unknown(next(filter(None, segments)))


def _split(text: str) -> list[str]:
    """Words as a shell makes them; of a list, as a container's ``args`` are, its items.

    What a word processor made of quotes and of two dashes is taken back, and what Markdown or a
    shell put around a command.
    """
    text = _PROMPT.sub("", _FENCE.sub("", _DASH.sub("--", text.translate(_TYPESET))))
    if (command := command_of(text)) is not None:
        return command
    if text.startswith("`") and text.endswith("`"):
        text = text.strip("`")
    if text.lstrip().startswith("["):
        with suppress(json.JSONDecodeError):
            return [str(word) for word in json.loads(text)]
    lines = [line.strip() for line in _LIST.sub("", text).strip().splitlines()]
    if _LIST.match(text) or all(line.startswith("- ") for line in lines):
        text = " ".join(map(_of_list, lines))
    try:
        return shlex.split(_with_ends(_CONTINUATION.sub(" ", text)), comments=True)
    except ValueError as error:
        raise PlanError(f"the command cannot be read as a shell would: {error}") from None


def _with_ends(text: str) -> str:
    """Text with a sign where a line ends a command: the next one does not begin as an option."""
    words = ""
    for match in _PIECE.finditer(text):
        words += match[0]
        if match[0] == "\n" and not (
            _GOES_ON.match(text, match.end()) or _WANTS_MORE.search(words)
        ):
            words += " ; "
    return words


def _of_list(line: str) -> str:
    """Line of a list, or a list in one line, as a shell would have it."""
    if line.startswith("["):
        with suppress(json.JSONDecodeError):
            return shlex.join(map(str, json.loads(line)))
    return line.removeprefix("- ")


def _segments(words: Sequence[str]) -> list[list[str]]:
    """Commands of a pipeline, without redirections."""
    segments: list[list[str]] = [[]]
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in _SEPARATORS:
            segments.append([])
        elif match := _REDIRECTION.fullmatch(word):
            skip = match[1] is None
        elif word.endswith(";") and not word.startswith("{"):
            segments[-1].append(word[:-1])
            segments.append([])
        elif word.strip() not in {"\\", "^", "`"} and (word.strip() or not word):
            segments[-1].append(word)
    return segments


def _server(words: list[str]) -> _Found:
    """Find the server that a command starts."""
    if words and (words[0] == "serve" or words[0].startswith("--")):
        return _Found([], words[words[0] == "serve" :])
    for index, word in enumerate(words):
        rest = words[index + 1 :]
        name = PurePath(word).name
        if name in _CONTAINERS and rest[:1] in (["run"], ["create"]):
            return _container(words[: index + 1], rest[1:])
        if name in _CONTAINERS and rest[:1] == ["compose"] and "run" in rest:
            return _container(words[: index + 1], rest[rest.index("run") + 1 :])
        if name in _SHELLS and len(rest) > 1 and re.fullmatch(r"-\w*c", rest[0]):
            return _of_shell(words[:index], rest[1])
        if (start := _start_of(name, rest)) is not None:
            skipped, engine = start
            return _Found(words[:index], rest[skipped:], engine)
    return _quoted(words)


def _quoted(words: list[str]) -> _Found:
    """As `_server`, within a word that is a command itself: ``tmux`` and ``ssh`` take one."""
    for index, word in enumerate(words):
        if " " in word and ("vllm" in word or "sglang" in word):
            found = _of_shell(words[:index], word)
            if found.arguments is not None:
                return found
    return _Found(words)


def _start_of(name: str, rest: list[str]) -> tuple[int, Engine] | None:
    """Words between a word and the server's arguments, and whose they are; None without one."""
    if name in _SCRIPTS:
        return 0, _SCRIPTS[name]
    if (name == "vllm" and rest[:1] == ["serve"]) or (name == "-m" and rest[:1] in _MODULES):
        return 1, "vLLM"
    if name == "-m" and rest[1:2] == ["serve"] and rest[:1] in _MAIN_MODULES:
        return 2, "vLLM"
    of_sglang = (name, *rest[:1]) in {("sglang", "serve"), ("-m", "sglang.launch_server")}
    return (1, "SGLang") if of_sglang else None


def _of_shell(before: list[str], text: str) -> _Found:
    """Find the server within what a shell is given."""
    for segment in _segments(_split(text)):
        found = _server(segment)
        before = [*before, *found.before]
        if found.arguments is not None:
            return found._replace(before=before)
    return _Found(before)


def _container(before: list[str], words: list[str]) -> _Found:
    """Find the server of a container; the entry point of vLLM's image is ``vllm serve``."""
    index, entry = 0, None
    while index < len(words) and words[index].startswith("-"):
        option, has_value, value = words[index].partition("=")
        is_switch = option in _DOCKER_SWITCHES or (
            not option.startswith("--") and not option[1:].strip(_DOCKER_LETTERS)
        )
        is_attached = not option.startswith("--") and len(option) > 2
        if not (has_value or is_switch or is_attached):
            index += 1
            value = words[index] if index < len(words) else ""
        if option == "--entrypoint":
            entry = value
        index += 1
    if index >= len(words):
        raise PlanError("docker run names no image: put it before the server's arguments")
    arguments = words[index + 1 :]
    variables = [*before, *words[:index]]
    if entry is not None:
        arguments = [entry, *arguments]
    if not arguments or arguments[0].startswith("-"):
        return _Found(variables, arguments)
    found = _server(arguments)
    if found.arguments is not None:
        return found._replace(before=[*variables, *found.before])
    image = PurePath(words[index]).name
    is_model = entry is None and "vllm" in words[index] and len(arguments[0].split("/")) <= 2
    if is_model or image.startswith("vllm-openai"):
        return _Found(variables, arguments)
    return _Found(variables)


def _expanded(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Arguments with the variables that the command itself sets, or has a default for.

    Raises:
        PlanError: another variable.

    """

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        found = environment.get(name) or match[3]
        if found is None and name is None:
            raise PlanError(f"{match.string}: a shell works this value out; write the value itself")
        if found is None:
            raise PlanError(f"{match.string}: the value of {match[0]} is not known; write it out")
        return found

    words: list[str] = []
    for word in arguments:
        if word in {"$@", "$*"}:
            continue
        if word.startswith("{"):
            words.append(word)
        elif _VARIABLE.fullmatch(word):
            words += _split(_VARIABLE.sub(value, word))
        else:
            words.append(_VARIABLE.sub(value, word))
    return words


def _unknown(words: Sequence[str]) -> PlanError:
    said = " ".join(words[:3]).rstrip(":")
    names = [PurePath(word).name for word in words]
    other: list[tuple[Callable[[str], bool], str]] = [
        (lambda name: name.startswith("sglang"), "this command of SGLang's"),
        (lambda name: name.startswith("dynamo"), "a command of Dynamo's"),
        (lambda name: name.startswith("trtllm"), "a command of TensorRT-LLM's"),
    ]
    for is_it, what in other:
        if any(map(is_it, names)):
            return PlanError(
                f"{said}: {what} is not read: give its model, memory and --tp to plan it; {READ}"
            )
    if "vllm" in names and names[-1] != "vllm":
        following = names[names.index("vllm") + 1]
        return PlanError(f"{said}: vllm {following} starts no server; {READ}")
    return PlanError(f"{said}: no command that starts vLLM's server; {READ}")
