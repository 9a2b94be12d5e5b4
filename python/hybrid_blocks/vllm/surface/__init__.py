"""The recorded needs of the adapter in vLLM, and how the installed vLLM differs from them."""

import dataclasses
import inspect
from collections.abc import Collection, Iterator
from enum import StrEnum
from importlib import import_module
from types import FunctionType
from typing import Any, Literal

from hybrid_blocks.vllm.surface import support
from hybrid_blocks.vllm.surface.recorded import Surface


class Tier(StrEnum):
    """The parts of the adapter by their needs of vLLM; each tier needs those before it."""

    POOL = "pool"
    MANAGER = "manager"
    SCHEDULER = "scheduler"
    """Needs of the one-call scheduler."""
    NATURAL = "natural"
    """Level ``natural``, which needs the tier before it only where requests are checked."""
    WORKER = "worker"
    """The copies of blocks in workers, which need no tier but the first."""


def differences(version: str, but: Collection[str] = ()) -> dict[Tier, list[str]]:
    """Return by tier how the installed vLLM differs from the recorded release next to ``version``.

    Names, parameters and attributes are compared, not what functions do. The
    comparison takes some milliseconds once vLLM's modules are imported. Tiers in ``but`` are left
    out, with the modules that they alone import.
    """
    surface = Surface(support.nearest(version))
    found: dict[Tier, list[str]] = {tier: [] for tier in Tier if tier not in but}
    for part in (_names, _callables, _attributes):
        for tier, difference in part(surface, but):
            found[Tier(tier)].append(difference)
    return found


def part_differences(part: Literal["offload", "recorder", "forward"], version: str) -> list[str]:
    """Return how the installed vLLM differs in what a part of the adapter uses beside the tiers.

    These are offload, the recorder of traffic, and the forwards that leave prefill checkpoints.
    """
    recorded = Surface(support.nearest(version)).recorded[part]
    gone = [
        f"{_dotted(owner, name)} is gone"
        for owner, names in recorded["fields"].items()
        for name in names
        if (found := _find(owner)) is None or name not in members(found)
    ]
    for owner, methods in recorded["callables"].items():
        gone += [difference for _, difference in _changed(owner, _find(owner), methods)]
    return gone


def _changed(owner: str, found: Any, methods: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Yield the name of each callable that is not as recorded, and how it differs."""
    for name, expected in methods.items():
        method = getattr(found, name, None)
        if method is None:
            yield name, f"{_dotted(owner, name)} is gone"
        elif (parameters := _parameters(method)) != expected:
            yield name, f"{_dotted(owner, name)} {_change(expected, parameters)}"


def _names(surface: Surface, but: Collection[str]) -> Iterator[tuple[str, str]]:
    for module, names in surface.names().items():
        for name in names:
            tier = surface.tier_of_name(f"{module}:{name}")
            if tier not in but and not _is_there(module, name):
                yield tier, f"{module}.{name} is gone"


def _callables(surface: Surface, but: Collection[str]) -> Iterator[tuple[str, str]]:
    for owner, methods in surface.callables().items():
        if methods and all(surface.tier_of_callable(owner, name) in but for name in methods):
            continue
        found = _find(owner)
        if found is None:
            yield surface.tier_of_owner(owner), f"{_dotted(owner)} is gone"
            continue
        for name, difference in _changed(owner, found, methods):
            if (tier := surface.tier_of_callable(owner, name)) not in but:
                yield tier, difference
    for owner in surface.closed():
        if surface.tier_of_owner(owner) in but:
            continue
        known = surface.recorded["callables"][owner]
        for name, value in vars(_find(owner) or object).items():
            if isinstance(value, FunctionType) and not name.startswith("__") and name not in known:
                yield surface.tier_of_owner(owner), f"{_dotted(owner, name)} is new"


def _attributes(surface: Surface, but: Collection[str]) -> Iterator[tuple[str, str]]:
    for owner, names in surface.attributes().items():
        tier = surface.tier_of_owner(owner)
        if tier in but:
            continue
        found = _find(owner)
        if found is None:
            yield tier, f"{_dotted(owner)} is gone"
        else:
            for name in sorted(names - members(found)):
                yield tier, f"{_dotted(owner, name)} is gone"


def _find(owner: str) -> Any:
    """Return the object of ``module:name``, the module of ``module:``, or nothing."""
    module, _, name = owner.partition(":")
    try:
        found = import_module(module)
        if not name:
            return found
        return getattr(found, name, None)
    except ImportError:
        return None


def _is_there(module: str, name: str) -> bool:
    """Whether a module has a name, or a module in it that is not imported yet."""
    found = _find(f"{module}:")
    return found is not None and (hasattr(found, name) or _find(f"{module}.{name}:") is not None)


def _parameters(function: Any) -> list[str]:
    # The code object answers a hundred times faster than `inspect.signature`.
    is_bound = inspect.ismethod(function)
    function = _unwrapped(getattr(function, "__func__", function))
    code = getattr(function, "__code__", None)
    if code is None:
        return list(inspect.signature(function).parameters)
    count = code.co_argcount + code.co_kwonlyargcount
    names = list(code.co_varnames[:count])
    if code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        names += list(inspect.signature(function).parameters)[count:]
    return names[is_bound:]


def _change(old: list[str], new: list[str]) -> str:
    changes = [f"lacks parameter {name}" for name in old if name not in new]
    changes += [f"has a new parameter {name}" for name in new if name not in old]
    return " and ".join(changes) or f"takes its parameters in the order {', '.join(new)}"


def members(found: Any) -> set[str]:
    """Return the attributes of a module, of a class, and those that its methods name.

    An attribute that only objects have is one that some method of the class writes or reads.
    """
    members = set(dir(found)) | set(getattr(found, "__annotations__", ()))
    for cls in getattr(found, "__mro__", ()):
        members.update(vars(cls), vars(cls).get("__annotations__", ()))
        for value in vars(cls).values():
            function = getattr(value, "__func__", value)
            if isinstance(function, FunctionType):
                members.update(_unwrapped(function).__code__.co_names)
    if dataclasses.is_dataclass(found):
        members.update(field.name for field in dataclasses.fields(found))
    return members


def _unwrapped(function: Any) -> Any:
    # `inspect.unwrap` costs most of a comparison, and few functions are wrapped.
    return inspect.unwrap(function) if hasattr(function, "__wrapped__") else function


def _dotted(owner: str, name: str = "") -> str:
    return ".".join(part for part in (*owner.split(":"), name) if part)
