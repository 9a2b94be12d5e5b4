"""Packages that are not required, each tried in a process of its own: a doctor outlives them."""

import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from select import select
from typing import Any, Final, NamedTuple

from hybrid_blocks.tools.doctor.environment import ON_CPU, QUIETLY

PATIENCE_S: Final = 300.0
"""How long a package may take: an import from a cold disk takes a minute."""

_CHILD: Final = "from hybrid_blocks.tools.doctor.packages import answer; answer()"


class Extra(NamedTuple):
    """A package that is not required.

    ``check`` takes the imported module and returns what it found to work; it raises
    ``RuntimeError`` to say what does not. ``fallback`` are environment variables of a second try.
    """

    distribution: str
    module: str
    purpose: str
    check: Callable[[Any], str]
    fallback: Mapping[str, str] = {}


class Verdict(NamedTuple):
    """Whether a package can be used, and what it does or why not."""

    is_usable: bool
    text: str

    def __str__(self) -> str:
        return f"{'yes' if self.is_usable else 'no'}: {self.text}"


def rows(extras: Sequence[Extra]) -> list[tuple[str, str, str, str]]:
    """Return name, version, verdict and purpose of each package. All are tried side by side."""
    found = [_version(extra.distribution) for extra in extras]
    tries = [
        _Try(extra, {}) if number is not None else None
        for extra, number in zip(extras, found, strict=True)
    ]
    lines = []
    for extra, number, tried in zip(extras, found, tries, strict=True):
        verdict = Verdict(is_usable=False, text="not installed")
        if tried is not None:
            verdict = _second_try(extra, tried.verdict())
        lines.append((extra.distribution, number or "-", str(verdict), extra.purpose))
    return lines


def _second_try(extra: Extra, first: Verdict) -> Verdict:
    if first.is_usable or all(os.environ.get(name) == it for name, it in extra.fallback.items()):
        return first
    second = _Try(extra, extra.fallback).verdict()
    if not second.is_usable:
        return first
    needed = " ".join(f"{name}={value}" for name, value in extra.fallback.items())
    return Verdict(is_usable=True, text=f"{second.text}, with {needed} (without it: {first.text})")


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def kernels_by(lines: Sequence[tuple[str, str, str, str]]) -> str:
    """Say which package moves blocks on this machine, and why none that is quicker does."""
    verdicts = {name.partition("-cuda")[0]: verdict for name, _, verdict, _ in lines}
    quickest, better = "none: the kernels need torch", []
    for name in ("cupy", "triton", "torch"):
        is_usable, _, why = verdicts.get(name, "no: not installed").partition(": ")
        if is_usable == "yes":
            quickest = name
            break
        better.append(f"{name}: {why}")
    if quickest != "torch" and not verdicts.get("torch", "no").startswith("yes"):
        quickest = "none: the kernels need torch"
    return f"{quickest} ({'; '.join(better)})" if better else quickest


class _Try:
    """A process that imports a package and checks it."""

    def __init__(self, extra: Extra, variables: Mapping[str, str]) -> None:
        self._answer, write_end = os.pipe()
        check = (extra.check.__module__, extra.check.__qualname__)
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(write_end), extra.module, *check],
            env={**os.environ, **QUIETLY, **path, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(write_end,),
        )
        os.close(write_end)

    def verdict(self) -> Verdict:
        """Wait for what it says; a process that ended without a word is described by its end."""
        with os.fdopen(self._answer, "rb") as answer:
            if not select([answer], [], [], PATIENCE_S)[0]:
                self._process.kill()
                self._process.wait()
                return Verdict(is_usable=False, text=f"it gave no answer in {PATIENCE_S:.0f} s")
            text = answer.read()
        code = self._process.wait()
        return Verdict(*json.loads(text)) if text else Verdict(is_usable=False, text=_end(code))


def _end(code: int) -> str:
    if code >= 0:
        return f"its process ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ": it needs instructions that this processor has not" if name == "SIGILL" else ""
    return f"{name} killed its process{hint}"


def answer() -> None:
    """Import and check a package and write the verdict, in a process of its own."""
    write_end, module, check_module, check_name = sys.argv[1:]
    try:
        with warnings.catch_warnings(action="ignore"):
            check: Callable[[Any], str] = getattr(import_module(check_module), check_name)
            verdict = (True, check(import_module(module)))
    except Exception as error:  # noqa: BLE001 - a package may fail with anything
        reason = str(error).strip().splitlines() or [type(error).__name__]
        verdict = (False, reason[0])
    with os.fdopen(int(write_end), "w") as answer:
        json.dump(verdict, answer)


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


def _wheel_of_cupy() -> str:
    """Return the name of the wheel that is installed: there is one for each CUDA release."""
    wheels = ("cupy-cuda13x", "cupy-cuda12x")
    return next((wheel for wheel in wheels if _version(wheel)), "cupy")


def _check_cupy(cupy: Any) -> str:
    try:
        found = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise RuntimeError("no CUDA device was found, on the CPU torch moves states") from error
    major, minor = cupy.cuda.nvrtc.getVersion()
    return f"NVRTC {major}.{minor} compiles the CUDA kernels for {found} devices"


def check_vllm(vllm: Any) -> str:
    """Say whether a vLLM has what the adapter needs.

    Raises:
        RuntimeError: it lacks something.
    """
    from hybrid_blocks.vllm import surface  # noqa: PLC0415 - of no use to other packages
    from hybrid_blocks.vllm.surface import support  # noqa: PLC0415 - of no use to other packages

    found = surface.differences(vllm.__version__)
    for tier, lines in found.items():
        if lines:
            raise RuntimeError(f"differs from what tier {tier} needs: {lines[0]}")
    if not support.is_tested(vllm.__version__):
        return f"untested, but equal in all that is used to {support.nearest(vllm.__version__)}"
    return "a tested version"


def _check_bokeh(_: Any) -> str:
    return "pages can be drawn"


def _check_prometheus(_: Any) -> str:
    return "metrics can be read"


EXTRAS = (
    Extra("torch", "torch", "kernels, vLLM adapter", _check_torch),
    Extra("triton", "triton", "kernels", _check_triton),
    Extra(_wheel_of_cupy(), "cupy", "kernels", _check_cupy),
    Extra("vllm", "vllm", "vLLM adapter", check_vllm, ON_CPU),
    Extra("bokeh", "bokeh", "plan --html, replay --html, view", _check_bokeh),
    Extra("prometheus-client", "prometheus_client", "top", _check_prometheus),
)
