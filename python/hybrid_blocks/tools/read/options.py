"""The recorded options of vLLM's server: what they are called, and what they take."""

from difflib import get_close_matches
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Final, Literal

import msgspec

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
