"""``hybrid-blocks doctor``: what is installed, what can be used, and what stands in the way."""

import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from hybrid_blocks._core import build_info
from hybrid_blocks.vllm import support, surface


class Extra(NamedTuple):
    """A package that is not required.

    ``check`` takes the imported module and returns what it found to work; it raises
    ``RuntimeError`` to say what does not.
    """

    distribution: str
    module: str
    purpose: str
    check: Callable[[Any], str]


def doctor() -> None:
    """Print the build, the CPU features, and for each optional package whether it is usable."""
    info = build_info()
    console = Console()
    console.print(f"hybrid_blocks {info['version']}", highlight=False)
    console.print(f"build         {info['profile']}, {info['os']} {info['arch']}")
    console.print(f"cpu features  {' '.join(info['cpu_features']) or 'none of those looked for'}")
    table = Table("package", "version", "usable", "for", title_justify="left")
    for package in EXTRAS:
        table.add_row(*_row(package))
    console.print(table)


def _row(package: Extra) -> tuple[str, str, str, str]:
    try:
        found = version(package.distribution)
    except PackageNotFoundError:
        return package.distribution, "-", "no: not installed", package.purpose
    try:
        with warnings.catch_warnings(action="ignore"):
            usable = f"yes: {package.check(import_module(package.module))}"
    except (ImportError, OSError, AttributeError, RuntimeError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        usable = f"no: {reason[0]}"
    return package.distribution, found, usable, package.purpose


def _check_torch(torch: Any) -> str:
    if not torch.cuda.is_available():
        return "on the CPU only, no CUDA device was found"
    return str(torch.cuda.get_device_name())


def _check_triton(triton: Any) -> str:
    try:
        target = triton.runtime.driver.active.get_current_target()
    except RuntimeError as error:
        raise RuntimeError("no GPU driver is active") from error
    return f"compiles for {target.backend} {target.arch}"


def _check_nvrtc(nvrtc: Any) -> str:
    error, major, minor = nvrtc.nvrtcVersion()
    if error:
        raise RuntimeError(f"NVRTC answers {error}")
    return f"NVRTC {major}.{minor} compiles the CUDA kernels"


def _check_vllm(vllm: Any) -> str:
    found = surface.differences(vllm.__version__)
    for tier, lines in found.items():
        if lines:
            raise RuntimeError(f"differs from what tier {tier} needs: {lines[0]}")
    if not support.is_tested(vllm.__version__):
        return f"untested, but equal in all that is used to {support.nearest(vllm.__version__)}"
    return "a tested version"


def _check_matplotlib(_: Any) -> str:
    return "figures can be drawn"


EXTRAS = (
    Extra("torch", "torch", "kernels, vLLM adapter", _check_torch),
    Extra("triton", "triton", "kernels", _check_triton),
    Extra("cuda-bindings", "cuda.bindings.nvrtc", "kernels", _check_nvrtc),
    Extra("vllm", "vllm", "vLLM adapter", _check_vllm),
    Extra("matplotlib", "matplotlib", "replay --plot", _check_matplotlib),
)
