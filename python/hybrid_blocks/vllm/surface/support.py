"""The releases of vLLM that this package was tested with, and the nearest one to another."""

import re
from functools import cache
from importlib.resources import files


def release_of(version: str) -> str | None:
    """Return the release of ``version``, ``0.33`` of ``0.33.0+cpu``; ``None`` if it has none."""
    release = re.match(r"\d+\.\d+(?=\.|$)", version)
    return release[0] if release else None


def _listed() -> tuple[str, ...]:
    lines = (files(__package__) / "tested.txt").read_text().splitlines()
    return tuple(release for line in lines if (release := release_of(line)))


TESTED = _listed()
"""In ascending order."""


@cache
def ordered(release: str) -> tuple[int, ...]:
    """Return what orders releases: 0.9 comes before 0.33."""
    return tuple(map(int, release.split(".")))


def is_tested(version: str) -> bool:
    """Return whether ``version`` belongs to one of the tested releases."""
    return release_of(version) in TESTED


def nearest(version: str) -> str:
    """Return the newest tested release that is not after ``version``, else the oldest one.

    A version without a number, as of a development build, counts as the newest.
    """
    release = release_of(version)
    if release is None:
        return TESTED[-1]
    before = [tested for tested in TESTED if ordered(tested) <= ordered(release)]
    return before[-1] if before else TESTED[0]


def tested_versions() -> str:
    """Return the tested releases in words."""
    return " and ".join(filter(None, (", ".join(TESTED[:-1]), TESTED[-1])))
