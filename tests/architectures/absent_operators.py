"""vLLM's compiled operators need a driver: empty modules stand in for them.

A model only names operators while it is built, and calls none.
"""

import os
import re
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Stream:
    """A stream or an event of no device."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def _attribute(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Stream()


COMPILED = re.compile(r"vllm(\..+)?\._\w*C(_stable_libtorch|_extension)?")


class Operators(MetaPathFinder, Loader):
    """Empty modules in place of vLLM's compiled operators, which need a driver.

    A model only names operators while it is built, and calls none.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        return ModuleSpec(name, self) if COMPILED.fullmatch(name) else None

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__getattr__"] = _attribute


sys.meta_path.insert(0, Operators())
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Triton is not to be sought a device for
