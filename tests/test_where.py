"""The places of a kind: how many files another one would touch."""

import re

import pytest
import where

MOST = 10


def code(kind: str) -> set[str]:
    """The files beside tests and documents that name a kind."""
    files = {file for file, _, _ in where.places(kind)}
    return {it for it in files if not re.search(r"(^|/)(tests|docs)[/.]", it)}


@pytest.mark.parametrize("kind", ["ring", "state"])
def test_both_tables_name_a_kind(kind: str) -> None:
    assert {where.CORE, where.SPECS} <= code(kind)


def test_a_kind_with_a_look_up_of_its_neighbours_touches_ten_files() -> None:
    files = code("ring")
    assert len(files) <= MOST, sorted(files)


def test_a_kind_is_found_by_all_its_names() -> None:
    pattern = where.names("sliding_window")
    for text in ('"sliding_window"', "GroupKind::SlidingWindow { .. }", "SlidingWindowSpec("):
        assert pattern.search(text), text
    assert not pattern.search("a sliding window of 4 tokens")
    assert not where.names("mla").search("FullAttentionManager")
    with pytest.raises(ValueError, match="no kind 'bag'; there are chunked"):
        where.names("bag")
