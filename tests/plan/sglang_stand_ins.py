"""Lets SGLang's files be imported without a GPU and without what they import besides.

What is not installed is stood in for, since none of it takes part in the arithmetic of pools.
"""

import importlib.abc
import importlib.machinery
import logging
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

_ASKED_FOR = ("torch_npu",)
"""SGLang asks by an import whether it is there; a stand-in would send it another way."""


class _Absent(types.ModuleType):
    __path__ = ()  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds each package that is not installed, where SGLang's files ask for it."""

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        top = name.partition(".")[0]
        if top != name:
            if not isinstance(sys.modules.get(top), _Absent):
                return None
        elif top in _ASKED_FOR or "/sglang/" not in _importer():
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _importer() -> str:
    frame = sys._getframe(2)
    while frame is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back  # type: ignore[assignment]
    return "" if frame is None else frame.f_code.co_filename


def _find_sglang() -> None:
    """Import the bare package; its own ``__init__`` starts the front end."""
    for folder in sys.path:
        if (Path(folder) / "sglang" / "srt").is_dir():
            package = types.ModuleType("sglang")
            package.__path__ = [str(Path(folder) / "sglang")]
            sys.modules["sglang"] = package
            break
    else:
        raise SystemExit("sglang's wheel is not on PYTHONPATH")
    sys.modules["vllm"] = None  # type: ignore[assignment]
    sys.meta_path.append(_StandIns())


_find_sglang()
logging.disable()
