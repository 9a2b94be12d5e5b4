"""``python release/rehearse.py FOLDER UV``: prove the files of a release as a user installs them.

FOLDER holds a wheel for each architecture and the source distribution. Tools of the index and of
the ABI check them. The folder gains lists of hashes and inventories. Then pip installs by those
hashes, from a folder and without a compiler, into an empty environment.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

ARCHITECTURES: Final = ("aarch64", "x86_64")
PLATFORM: Final = "manylinux_2_28"
OLDEST_PYTHON: Final = "3.11"
BROUGHT_BY_VLLM: Final = ("msgspec", "numpy", "orjson", "rich", "typer")
"""Packages that vLLM needs too, so that beside vLLM its own versions stay."""
NOT_BROUGHT: Final = ("zstandard",)


def wheels_in(folder: Path) -> list[Path]:
    """Return the wheels: one for each architecture, for the stable ABI and the same platform."""
    wheels = sorted(folder.glob("*.whl"))
    found = tuple(wheel.stem.rpartition(f"-abi3-{PLATFORM}_")[2] for wheel in wheels)
    if found != ARCHITECTURES:
        sys.exit(f"{folder} should hold abi3 wheels of {PLATFORM} for {ARCHITECTURES}: {found}")
    return wheels


def pin(wheels: Sequence[Path]) -> str:
    """Return the line that pins the package to the bytes of its wheels."""
    name, version, *_ = wheels[0].name.split("-")
    hashes = (hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels)
    parts = [f"{name.replace('_', '-')}=={version}", *(f"--hash=sha256:{it}" for it in hashes)]
    return " \\\n    ".join(parts) + "\n"


def pins_of(names: Sequence[str], requirements: str) -> str:
    """Return the entries of some packages in a list of pinned ones."""
    entries = requirements.replace("\\\n", "\\\0").splitlines()
    kept = [entry for entry in entries if entry.partition("==")[0] in names]
    return "".join(entry.replace("\0", "\n") + "\n" for entry in kept)


def crates(wheel: Path) -> Any:
    """Return the inventory of crates that maturin writes into a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (it for it in archive.namelist() if ".dist-info/sboms/" in it)
        return json.loads(archive.read(name))


def without_licence(inventory: Any) -> list[str]:
    """Return the parts of an inventory that name no licence."""
    return sorted(it["name"] for it in inventory["components"] if not it.get("licenses"))


def write_inventory(file: Path, inventory: Any) -> None:
    """Keep an inventory in which each part names its licence."""
    if missing := without_licence(inventory):
        sys.exit(f"{file.name}: no licence is known of {', '.join(missing)}")
    file.write_text(json.dumps(inventory, indent=1) + "\n")
    print(f"{file.name}: {len(inventory['components'])} parts, each with its licence")


def run(*words: object, env: dict[str, str] | None = None) -> str:
    """Return what a command prints; print all of it if it fails."""
    command = [str(word) for word in words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def check_files(folder: Path, uv: str) -> None:
    """Let the tools of the index, of manylinux and of the stable ABI judge the files."""
    wheels = wheels_in(folder)
    sources = sorted(folder.glob("*.tar.gz"))
    if len(sources) != 1:
        sys.exit(f"{folder} should hold one source distribution: {sources}")
    run(uv, "tool", "run", "twine", "check", "--strict", *wheels, *sources)
    for wheel in wheels:
        shown = run(uv, "tool", "run", "auditwheel", "show", wheel)
        if f'"{PLATFORM}_' not in shown:
            sys.exit(f"{wheel.name} is not {PLATFORM}:\n{shown}")
        run(uv, "tool", "run", "abi3audit", "--strict", wheel)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {PLATFORM}, abi3")
    print(f"{sources[0].name}: {sources[0].stat().st_size / 1e6:.1f} MB")


def write_lists(folder: Path, uv: str) -> None:
    """Write what pip installs by hash: all packages, and those that a vLLM lacks."""
    needed = run(
        *(uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--universal"),
        *("--python-version", OLDEST_PYTHON, "--generate-hashes", "pyproject.toml"),
    )
    own = pin(wheels_in(folder))
    (folder / "requirements.txt").write_text(own + needed)
    (folder / "plugin.txt").write_text(own + pins_of(NOT_BROUGHT, needed))


def install(folder: Path, scratch: Path, uv: str) -> None:
    """Install by hash from a folder into an empty environment, and start the package there."""
    shutil.rmtree(scratch, ignore_errors=True)
    index, environment = scratch / "index", scratch / "environment"
    listed = ("--require-hashes", "-r", folder / "requirements.txt")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "download", "--find-links", folder, "--only-binary=:all:", "--dest", index, *listed)
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    bare = {"PATH": str((environment / "bin").resolve()), "HOME": str(scratch.resolve())}
    if shutil.which("cargo", path=bare["PATH"]):
        sys.exit("the empty environment has a compiler")
    into = ("--python", environment / "bin/python")
    run(*pip, *into, "install", "--no-index", "--find-links", index, *listed, env=bare)
    command = environment / "bin/hybrid-blocks"
    print(run(command, "doctor", env=bare))
    print(run(command, "plan", "Qwen3.5-27B", "--memory", "24GiB", env=bare).splitlines()[0])
    shown = run(
        *(uv, "tool", "run", "--from", "cyclonedx-bom", "cyclonedx-py", "environment"),
        *("--output-reproducible", "--of", "JSON", environment / "bin/python"),
    )
    write_inventory(folder / "packages.cdx.json", json.loads(shown))


def main(folder: Path, uv: str) -> None:
    """Rehearse a release."""
    check_files(folder, uv)
    write_lists(folder, uv)
    write_inventory(folder / "crates.cdx.json", crates(wheels_in(folder)[-1]))
    install(folder, Path("build/rehearsal"), uv)


if __name__ == "__main__":
    main(Path(sys.argv[1]), os.path.abspath(sys.argv[2]))  # noqa: PTH100 - a link must stay one
