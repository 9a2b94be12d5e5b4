"""Everybody in vLLM who counts blocks, or asks how long one is, is known."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from hybrid_blocks.vllm import releases
from hybrid_blocks.vllm.surface.support import TESTED

from natural.readers import readers

LISTED = tomllib.loads((Path(__file__).parent / "readers.toml").read_text())["reader"]


@pytest.fixture(scope="module")
def found() -> list[tuple[str, str]]:
    return [(path, function) for path, _, function in (key.partition("::") for key in readers())]


def _matches(entry: dict[str, list[str]], path: str, function: str) -> bool:
    is_named = entry["functions"] == ["*"] or function in entry["functions"]
    return is_named and fnmatch(path, str(entry["path"]))


def test_every_reader_of_blocks_is_listed(found: list[tuple[str, str]]) -> None:
    unlisted = [one for one in found if not any(_matches(entry, *one) for entry in LISTED)]
    unknown = [f"{path}: {function}" for path, function in unlisted]
    assert not unknown, f"say in readers.toml what becomes of {unknown}"


def test_every_listed_reader_is_there(found: list[tuple[str, str]]) -> None:
    if releases.installed.name != TESTED[-1]:
        return  # an earlier release lacks what came later
    gone = [
        f"{entry['path']}: {function}"
        for entry in LISTED
        for function in entry["functions"]
        if not any(fnmatch(path, entry["path"]) and function in ("*", name) for path, name in found)
    ]
    assert not gone, f"take {gone} out of readers.toml"


def test_entries_say_what_they_find_and_why() -> None:
    for entry in LISTED:
        assert set(entry) == {"path", "functions", "verdict", "reason"}
        assert entry["verdict"] in ("holds", "refused")
        assert entry["reason"]
