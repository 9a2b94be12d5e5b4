"""Files of a release: hashes that pip takes, inventories, an image of three lines."""

import hashlib
import importlib.util
import json
import re
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import rehearse
import tested_releases
import yaml
from hybrid_blocks.vllm import swap
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
IMAGE = ROOT / "examples/image/Dockerfile"
WORKFLOW = ROOT / ".github/workflows/wheels.yml"

NEEDED = """\
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:aa \\
    --hash=sha256:bb
zstandard==0.25.0 \\
    --hash=sha256:cc
"""


def wheel(folder: Path, architecture: str, content: str = "") -> Path:
    """A file that is named as a wheel of the release, with a module of its own."""
    path = folder / f"hybrid_blocks-0.1.0-cp311-abi3-manylinux_2_28_{architecture}.whl"
    info = "hybrid_blocks-0.1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hybrid_blocks.py", content)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.4\nName: hybrid-blocks\nVersion: 0.1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-abi3-linux\n"
        )
        archive.writestr(f"{info}/RECORD", "hybrid_blocks.py,,\n")
        archive.writestr(f"{info}/sboms/crates.cyclonedx.json", json.dumps({"components": []}))
    return path


def test_a_release_has_a_wheel_for_each_architecture(tmp_path: Path) -> None:
    x86 = wheel(tmp_path, "x86_64")
    with pytest.raises(SystemExit, match="should hold abi3 wheels"):
        rehearse.wheels_in(tmp_path)
    arm = wheel(tmp_path, "aarch64")
    assert rehearse.wheels_in(tmp_path) == [arm, x86]
    arm.rename(tmp_path / arm.name.replace("2_28", "2_34"))
    with pytest.raises(SystemExit, match="should hold abi3 wheels"):
        rehearse.wheels_in(tmp_path)


def test_the_package_is_pinned_to_the_bytes_of_all_wheels(tmp_path: Path) -> None:
    wheels = [wheel(tmp_path, "aarch64", "arm = 1"), wheel(tmp_path, "x86_64", "x86 = 1")]
    name, *hashes = rehearse.pin(wheels).replace("\\\n", "").split()
    digests = [hashlib.sha256(it.read_bytes()).hexdigest() for it in wheels]
    assert name == "hybrid-blocks==0.1.0"
    assert hashes == [f"--hash=sha256:{it}" for it in digests]
    assert digests[0] != digests[1]


def test_beside_vllm_the_list_has_what_vllm_lacks() -> None:
    assert rehearse.pins_of(["zstandard"], NEEDED) == NEEDED[NEEDED.index("zstandard") :]
    assert rehearse.pins_of(["numpy"], NEEDED) == NEEDED[: NEEDED.index("zstandard")]


def needs(package: str) -> set[str]:
    """Return the direct needs of a package, without its extras."""
    found = map(Requirement, requires(package) or [])
    return {it.name for it in found if it.marker is None or it.marker.evaluate({"extra": ""})}


def test_each_need_of_the_package_is_in_one_of_the_two_lists() -> None:
    both = [*rehearse.BROUGHT_BY_VLLM, *rehearse.NOT_BROUGHT]
    assert sorted(needs("hybrid-blocks")) == sorted(both)


@pytest.mark.vllm
def test_vllm_brings_the_packages_that_the_list_beside_it_leaves_out() -> None:
    seen: set[str] = set()
    waiting = {"vllm"}
    while waiting:
        package = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if package not in seen:
            seen.add(package)
            try:
                waiting |= needs(package)
            except PackageNotFoundError:  # another platform's, or one that the tests do without
                continue
    assert {*rehearse.BROUGHT_BY_VLLM} <= seen
    assert not seen & {*rehearse.NOT_BROUGHT}


def test_a_part_without_a_licence_is_named(tmp_path: Path) -> None:
    parts: list[dict[str, Any]] = [{"name": "a", "licenses": [{}]}, {"name": "b"}]
    inventory = {"components": parts}
    file = tmp_path / "crates.cdx.json"
    with pytest.raises(SystemExit, match=r"crates\.cdx\.json: no licence is known of b"):
        rehearse.write_inventory(file, inventory)
    assert not file.exists()
    parts.pop()
    rehearse.write_inventory(file, inventory)
    assert json.loads(file.read_text()) == inventory


def test_the_inventory_of_crates_is_read_from_the_wheel(tmp_path: Path) -> None:
    assert rehearse.crates(wheel(tmp_path, "x86_64")) == {"components": []}


def test_pip_installs_by_hash_alone(tmp_path: Path) -> None:
    """As the image does it: from a folder, and not once a byte of the wheel differs."""
    folder = tmp_path / "dist"
    folder.mkdir()
    any_machine = wheel(folder, "x86_64").rename(folder / "hybrid_blocks-0.1.0-py3-none-any.whl")
    listed = folder / "plugin.txt"
    listed.write_text(rehearse.pin([any_machine]))
    flags = re.findall(r"--[\w-]+", IMAGE.read_text().rpartition("pip install")[2])
    assert flags == ["--no-cache-dir", "--no-deps", "--require-hashes", "--find-links"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index"]
    command = [*pip, "--target", str(tmp_path / "here"), *flags, str(folder), "-r", str(listed)]
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "here/hybrid_blocks.py").exists()
    any_machine.write_bytes(any_machine.read_bytes() + b"\0")
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode
    assert "DO NOT MATCH THE HASHES" in done.stderr


def test_the_image_adds_two_lines_to_vllms() -> None:
    first, copied, ran = IMAGE.read_text().splitlines()
    versions = tested_releases.listed(ROOT)
    assert first == f"FROM {tested_releases.base(versions)}"
    *sources, place = copied.removeprefix("COPY ").split()
    assert sources == ["*.whl", "plugin.txt"]
    assert ran.endswith(f"--find-links {place.rstrip('/')} -r {place}plugin.txt")


def test_the_workflow_rehearses_what_it_publishes_and_signs_its_provenance() -> None:
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    assert any("make rehearse" in step.get("run", "") for step in jobs["rehearse"]["steps"])
    assert jobs["release"]["needs"] == "rehearse"
    assert jobs["release"]["permissions"]["attestations"] == "write"
    used = [step.get("uses", "").partition("@")[0] for step in jobs["release"]["steps"]]
    signed, published = map(
        used.index, ("actions/attest-build-provenance", "pypa/gh-action-pypi-publish")
    )
    assert signed < published


def test_a_swap_imports_no_module_that_waits_for_its_first_use(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("raise AssertionError('imported')")
    spec = importlib.util.spec_from_file_location("waits", tmp_path / "waits.py")
    assert spec is not None
    assert spec.loader is not None
    loader = spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "waits", module)
        swap.swap([(type("Old", (), {}), type("New", (), {}))])
        with pytest.raises(AssertionError, match="imported"):
            module.__dict__  # noqa: B018 - the first use


def test_a_swap_reads_a_users_modules_and_passes_packages_that_never_name_vllms() -> None:
    class Old:
        pass

    class New:
        pass

    with pytest.MonkeyPatch.context() as patch:
        modules = {it: ModuleType(it) for it in ("users_plugin.scheduling", "torch.of_a_test")}
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)
            vars(module)["Alias"] = Old
        swap.swap([(Old, New)])
    assert [vars(module)["Alias"] for module in modules.values()] == [New, Old]
    assert "__main__" not in swap._NEVER
