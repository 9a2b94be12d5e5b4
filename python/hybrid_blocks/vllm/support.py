"""Which vLLM this package can work inside."""

import re

SUPPORTED = ((0, 32), (0, 33))


def is_supported(version: str) -> bool:
    """Return whether ``version``, such as ``0.33.0+cpu``, is one of the supported releases."""
    release = re.match(r"(\d+)\.(\d+)(?=\.|$)", version)
    return release is not None and tuple(map(int, release.groups())) in SUPPORTED


def supported_versions() -> str:
    """Return the supported releases in words."""
    return " and ".join(f"{major}.{minor}" for major, minor in SUPPORTED)
