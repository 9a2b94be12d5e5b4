"""The compiled core: typed here by hand, checked against the binary by stubtest."""

from typing import TypedDict

class BuildInfo(TypedDict):
    """What the extension was built as."""

    version: str
    profile: str
    arch: str
    os: str
    cpu_features: list[str]

def build_info() -> BuildInfo:
    """Return version, profile (``debug`` or ``release``), target and CPU features."""
