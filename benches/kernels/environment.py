"""The figures' environment: versions, sources, clocks and the link."""

import subprocess
from importlib.metadata import PackageNotFoundError, version

import torch
from hybrid_blocks.kernels import sources

FIELDS = (
    "driver_version",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "power.draw",
    "temperature.gpu",
    "pcie.link.gen.current",
    "pcie.link.width.current",
)


def versions() -> dict[str, str]:
    """Return the versions of what compiles and launches, and the hash of the kernels' sources."""
    found = {"sources": sources.source_hash(), "cuda": str(torch.version.cuda)}
    for name in ("torch", "triton", "cupy-cuda12x", "cupy-cuda13x", "numpy", "vllm"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found


def device_state() -> dict[str, str]:
    """Return driver, clocks and link as nvidia-smi reports them now; empty where it is missing."""
    command = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader"]
    command += ["-i", str(torch.cuda.current_device())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(FIELDS, (value.strip() for value in done.stdout.split(",")), strict=False))
