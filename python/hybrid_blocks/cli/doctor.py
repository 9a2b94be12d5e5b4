"""``hybrid-blocks doctor``: what is installed and what can be used."""

from importlib.metadata import PackageNotFoundError, version

from rich.console import Console
from rich.table import Table

from hybrid_blocks._core import build_info


def doctor() -> None:
    """Print the build, the CPU features and the optional packages found."""
    info = build_info()
    table = Table(title=f"hybrid_blocks {info['version']}", show_header=False)
    table.add_row("build", f"{info['profile']}, {info['os']} {info['arch']}")
    table.add_row("cpu features", " ".join(info["cpu_features"]) or "none")
    for package in ("torch", "triton", "cupy-cuda13x", "vllm", "matplotlib"):
        try:
            table.add_row(package, version(package))
        except PackageNotFoundError:
            table.add_row(package, "not installed")
    Console().print(table)
