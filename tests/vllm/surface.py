"""`surface.toml`, as the installed version of vLLM should match it."""

import importlib
import tomllib
from pathlib import Path
from typing import Any

import vllm

SURFACE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("surface.toml").read_text())


def _release(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")[:2]))


VERSION = _release(vllm.__version__)


def is_present(name: str) -> bool:
    """Return whether the installed version is new enough to have what is listed."""
    since = SURFACE["since"].get(name)
    return since is None or _release(since) <= VERSION


def found_in(owner: str) -> Any:
    """Return what ``module:Class`` stands for, or the module for ``module:``."""
    module, _, attribute = owner.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def parameters_of(owner: str, method: str) -> list[str]:
    """Return the parameters that a callable is listed with, for the installed version."""
    release = ".".join(map(str, VERSION))
    older: dict[str, list[str]] = SURFACE["older"].get(release, {}).get(owner, {})
    parameters: list[str] = older.get(method) or SURFACE["callables"][owner][method]
    return parameters


CALLABLES = [
    (owner, method)
    for owner, methods in SURFACE["callables"].items()
    for method in methods
    if is_present(f"{owner}.{method}")
]
