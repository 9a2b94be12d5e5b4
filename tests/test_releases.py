"""Every file that names the tested releases of vLLM follows the one list of them."""

import tomllib
from pathlib import Path

import hybrid_blocks
import pytest
from hybrid_blocks.vllm.surface import support

ROOT = Path(__file__).parents[1]
MODULES = Path(hybrid_blocks.__file__).parent / "vllm" / "releases"
FIXTURES = ROOT / "rust/core/tests/fixtures"


def test_releases_are_listed_in_ascending_order() -> None:
    assert sorted(support.TESTED, key=support.ordered) == list(support.TESTED)


def test_each_release_has_a_module_and_no_other_has() -> None:
    found = {path.stem for path in MODULES.glob("v*.py")}
    assert found == {f"v{release.replace('.', '_')}" for release in support.TESTED}


def test_each_release_has_recorded_lives_and_no_other_has() -> None:
    found = {path.name for path in FIXTURES.glob("vllm-*")}
    parts = ("", "-ring")
    assert found == {f"vllm-{it}{part}.jsonl.gz" for it in support.TESTED for part in parts}


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "docs/vllm.md"])
def test_a_page_names_the_tested_releases(page: str) -> None:
    assert support.tested_versions() in (ROOT / page).read_text()


def test_the_extra_takes_the_oldest_release() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["vllm"] == [f"vllm>={support.TESTED[0]}"]
