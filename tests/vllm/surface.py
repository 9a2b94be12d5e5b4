"""The recorded surface, as the installed version of vLLM should match it."""

import importlib
from typing import Any

import vllm
from hybrid_blocks.vllm.surface import support
from hybrid_blocks.vllm.surface.recorded import Surface

RELEASE = support.nearest(vllm.__version__)
VERSION = support.ordered(RELEASE)
INSTALLED = Surface(RELEASE)
SURFACE: dict[str, Any] = INSTALLED.recorded
is_present = INSTALLED.is_present


def found_in(owner: str) -> Any:
    """Return what ``module:Class`` stands for, or the module for ``module:``."""
    module, _, attribute = owner.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def parameters_of(owner: str, method: str) -> list[str]:
    """Return the parameters that a callable is listed with, for the installed version."""
    return INSTALLED.callables()[owner][method]


ALL = [(owner, it) for owner, methods in INSTALLED.callables().items() for it in methods]
CALLABLES = [it for it in ALL if INSTALLED.reaches(INSTALLED.tier_of_callable(*it))]
"""Callables that the adapter calls or overrides, at the levels that the installed vLLM reaches."""
