"""vLLM's tests, from its source distribution."""

import os
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

UNPACKED = ("pyproject.toml", "tests/", "examples/")
COMPLETE = "complete-with-examples"


def fetch(build: Path) -> Path:
    """Return a folder with the tests of the installed vLLM, downloading them once into ``build``.

    Only the tests are unpacked, and the examples that some of them run: the sources beside them
    would hide the installed package.
    """
    release = version("vllm")
    unpacked = build / f"vllm-{release}-tests"
    if (unpacked / COMPLETE).exists():
        return unpacked
    archive = build / f"vllm-{release}.tar.gz"
    if not archive.exists():
        _download(release, build)
    root = f"vllm-{release}/"
    with tarfile.open(archive) as tar:
        for member in tar:
            inside = member.name.removeprefix(root)
            if inside.startswith(UNPACKED):
                tar.extract(member.replace(name=inside), unpacked, filter="data")
    (unpacked / COMPLETE).touch()
    return unpacked


def _download(release: str, build: Path) -> None:
    # pip asks the distribution for its metadata, and vLLM's build script imports torch and names
    # the version after the target device unless told otherwise.
    environment = os.environ | {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": release}
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary=vllm",
            "--no-build-isolation",
            f"--dest={build}",
            f"vllm=={release}",
        ],
        env=environment,
        check=True,
    )
