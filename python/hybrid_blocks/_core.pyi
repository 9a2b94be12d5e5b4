"""The compiled core: typed here by hand, checked against the binary by stubtest."""

from typing import TypedDict, type_check_only

__all__ = ["build_info"]

@type_check_only
class BuildInfo(TypedDict):
    """What the extension was built as."""

    version: str
    profile: str
    arch: str
    os: str
    cpu_features: list[str]

def build_info() -> BuildInfo:
    """Return version, profile (``debug`` or ``release``), target and CPU features."""
