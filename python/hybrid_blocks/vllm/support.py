"""Which vLLM this package can work inside."""

import re

SUPPORTED = ("0.32", "0.33")


def release_of(version: str) -> str | None:
    """Return the release of ``version``, ``0.33`` of ``0.33.0+cpu``; ``None`` if it has none."""
    release = re.match(r"\d+\.\d+(?=\.|$)", version)
    return release[0] if release else None


def is_supported(version: str) -> bool:
    """Return whether ``version`` belongs to one of the supported releases."""
    return release_of(version) in SUPPORTED


def supported_versions() -> str:
    """Return the supported releases in words."""
    return " and ".join(SUPPORTED)
