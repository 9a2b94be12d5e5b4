"""The recorded options of both servers: what they are called, and what they take."""

from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import msgspec

Engine = Literal["vLLM", "SGLang"]
Kind = Literal["switch", "text", "integer", "count", "length", "number", "object"]
Takes = Literal["nothing", "one", "maybe", "many"]


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


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """All options of one release."""

    engine: Engine = "vLLM"
    release: str
    options: tuple[Option, ...]

    def named(self) -> dict[str, Option]:
        """Return the options by their names."""
        return {option.name: option for option in self.options}

    def by_flag(self) -> dict[str, Option]:
        """Return the options by each of their flags."""
        return {flag: option for option in self.options for flag in (*option.flags, *option.off)}


@cache
def recorded(engine: Engine = "vLLM") -> Options:
    """Return what ``python -m hybrid_blocks.pasted.record`` found, or tests/plan for SGLang."""
    name = "options.json" if engine == "vLLM" else "sglang_options.json"
    text = files("hybrid_blocks.pasted").joinpath(name).read_bytes()
    return msgspec.json.decode(text, type=Options)


def near(flag: str, options: Options | None = None) -> str:
    """Return the flags that come near an unknown one, as the end of a sentence."""
    known = [known for known in (options or recorded()).by_flag() if known.startswith("--")]
    found = get_close_matches(flag, known, n=3, cutoff=0.6)
    return f"; near it: {', '.join(found)}" if found else ""
