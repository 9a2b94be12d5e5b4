"""The CUDA sources as CuPy is given them: headers in place, flags spelled out, one hash of all."""

import re
from functools import cache
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parent

# These options name all that changes machine code, but for -ftz=true, which CuPy adds itself: no
# kernel computes with floating-point numbers.
OPTIONS = ("-std=c++17", "--dopt=on")
_INCLUDE = re.compile(r'^#include "(.*)"$', re.MULTILINE)


@cache
def sources() -> dict[str, str]:
    """Return every CUDA source by its path below this folder, with its text."""
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for path in sorted((*ROOT.glob("*.cuh"), *ROOT.glob("*/*.cu*")))
    }


def source_of(operation: str) -> str:
    """Return ``<operation>/<operation>.cu`` with its headers in place.

    CuPy's cache on disk asks for the text alone.
    """
    texts = sources()
    text = texts[f"{operation}/{operation}.cu"]
    return _INCLUDE.sub(lambda found: texts[found[1]].replace("#pragma once\n", ""), text)


@cache
def source_hash() -> str:
    """Return 16 hex digits that change with any file of this folder, CUDA, Triton or launcher."""
    digest = sha256(" ".join(OPTIONS).encode())
    for path in sorted((*ROOT.rglob("*.py"), *ROOT.rglob("*.cu*"))):
        digest.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
