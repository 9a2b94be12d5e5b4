"""The places of a kind: how many files another one would touch."""

import re

import pytest
import where

MOST = {
    "chunked": 11,
    "cross": 8,
    "full": 16,
    "mamba_aligned": 13,
    "mamba_in_place": 5,
    "mla": 9,
    "ring": 7,
    "sliding_window": 17,
    "state": 13,
}
"""Files that name each kind, at most. A new kind should need ten."""


def code(kind: str) -> set[str]:
    """The files that name a kind, without tests, their models in ``rust/ops`` and documents."""
    files = {file for file, _, _ in where.places(kind)}
    return {it for it in files if not re.search(r"(^|/)(tests|docs|ops)[/.]", it)}


@pytest.mark.parametrize("kind", ["ring", "state"])
def test_both_tables_name_a_kind(kind: str) -> None:
    assert {where.CORE, where.SPECS} <= code(kind)


def test_every_kind_of_both_tables_has_a_ceiling() -> None:
    assert MOST.keys() == where.variants().keys() | where.specs().keys()


@pytest.mark.parametrize("kind", MOST)
def test_a_kind_is_named_in_no_more_files_than_today(kind: str) -> None:
    files = code(kind)
    assert len(files) <= MOST[kind], sorted(files)


def test_a_field_of_a_configuration_is_no_kind() -> None:
    files = code("sliding_window")
    assert not any("architecture" in file for file in files), sorted(files)


def test_a_kind_is_found_by_all_its_names() -> None:
    pattern = where.names("sliding_window")
    for text in ('"sliding_window"', "GroupKind::SlidingWindow { .. }", "SlidingWindowSpec("):
        assert pattern.search(text), text
    assert not pattern.search("a sliding window of 4 tokens")
    assert not where.names("mla").search("FullAttentionManager")
    with pytest.raises(ValueError, match="no kind 'bag'; there are chunked"):
        where.names("bag")
