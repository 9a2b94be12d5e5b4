"""Which version of an operation can run, and which is the best."""

import os
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    import torch

Backend = Literal["naive", "triton", "cupy", "copy_engine"]

# Best first. CUDA C++ controls the width and the number of loads in flight; Triton is next.
_ON_CUDA: tuple[Backend, ...] = ("cupy", "triton", "naive")
_NEEDS = {"cupy": "cupy", "triton": "triton", "copy_engine": "torch"}

_chosen: dict[tuple[str, str, str | None], Any] = {}


def usable_backends(device: "torch.device | str") -> tuple[Backend, ...]:
    """Return the versions that can run on tensors of ``device``, the best first.

    On a CUDA device a version counts when its package is installed. On the CPU ``naive`` is the
    only one, and ``triton`` beside it where ``TRITON_INTERPRET=1`` asks for Triton's interpreter.
    ``copy_engine``, which only gathers and scatters have, is not listed.
    """
    kind = str(device).partition(":")[0]
    if kind == "cuda":
        return tuple(name for name in _ON_CUDA if name == "naive" or _installed(name))
    if os.environ.get("TRITON_INTERPRET") == "1" and _installed("triton"):
        return ("naive", "triton")
    return ("naive",)


def implementation(package: str, device: "torch.device", backend: Backend | None) -> Any:
    """Return the module of ``package`` that runs on ``device``.

    Raises ``ValueError`` when ``backend`` names no version of it, or one that cannot run there.
    """
    key = (package, device.type, backend)
    module = _chosen.get(key)
    if module is None:
        module = _chosen[key] = _choose(package, device, backend)
    return module


def _choose(package: str, device: "torch.device", backend: Backend | None) -> Any:
    usable = [name for name in usable_backends(device) if _has(package, name)]
    name = usable[0] if backend is None else backend
    if name not in get_args(Backend):
        raise ValueError(f"backend is {name!r}; it must be one of {', '.join(get_args(Backend))}")
    if not _has(package, name):
        raise ValueError(
            f"backend {name!r} is no version of {package.rpartition('.')[2]}: usable here are "
            f"{', '.join(usable)}"
        )
    if name == "copy_engine" and "cupy" in usable:
        usable.append(name)
    if name not in usable:
        raise ValueError(
            f"backend {name!r} cannot run on {device}: usable here are {', '.join(usable)} "
            f"({_missing(name, device)})"
        )
    return import_module(f"{package}.{name}")


def _has(package: str, name: Backend) -> bool:
    return find_spec(f"{package}.{name}") is not None


@cache
def _installed(name: str) -> bool:
    try:
        return find_spec(_NEEDS[name]) is not None
    except ModuleNotFoundError:  # the package around it is not there
        return False


def _missing(name: str, device: "torch.device") -> str:
    if not _installed(name):
        extra = "cupy" if name == "cupy" else "torch"
        return f"{_NEEDS[name]} is not installed; pip install '.[{extra}]' in the checkout"
    return f"it needs CUDA tensors and these are on {device.type}"
