"""Which version of an operation can run, and which is the best."""

import os
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    import torch

Backend = Literal["naive", "triton", "cupy"]

# Best first. CUDA C++ controls the width and the number of loads in flight; Triton is next.
_ON_CUDA: tuple[Backend, ...] = ("cupy", "triton", "naive")


def usable_backends(device: "torch.device | str") -> tuple[Backend, ...]:
    """Return the versions that can run on tensors of ``device``, the best first.

    On a CUDA device a version counts when its package is installed. On the CPU ``naive`` is the
    only one, and ``triton`` beside it where ``TRITON_INTERPRET=1`` asks for Triton's interpreter.
    """
    kind = str(device).partition(":")[0]
    if kind == "cuda":
        return tuple(name for name in _ON_CUDA if name == "naive" or _installed(name))
    if os.environ.get("TRITON_INTERPRET") == "1" and _installed("triton"):
        return ("naive", "triton")
    return ("naive",)


def implementation(package: str, device: "torch.device", backend: Backend | None) -> Any:
    """Return the module of ``package`` that runs on ``device``.

    Raises ``ValueError`` when ``backend`` names no version or one that cannot run there.
    """
    usable = usable_backends(device)
    name = usable[0] if backend is None else backend
    if name not in get_args(Backend):
        raise ValueError(f"backend is {name!r}; it must be one of {', '.join(get_args(Backend))}")
    if name not in usable:
        raise ValueError(
            f"backend {name!r} cannot run on {device}: usable here are {', '.join(usable)} "
            f"({_missing(name, device)})"
        )
    return import_module(f"{package}.{name}")


@cache
def _installed(package: str) -> bool:
    return find_spec(package) is not None


def _missing(name: str, device: "torch.device") -> str:
    if not _installed(name):
        extra = "cupy" if name == "cupy" else "torch"
        return f"{name} is not installed; install hybrid-blocks[{extra}]"
    return f"it needs CUDA tensors and these are on {device.type}"
