"""The error names the test that leaves something behind."""

import logging

import pytest
from leftovers import changes, state


class OtherLogger(logging.Logger):
    pass


def test_what_stays_changed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYBRID_BLOCKS_CHECK", raising=False)
    before = state()
    assert changes(before, state()) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYBRID_BLOCKS_CHECK", "1")
        patch.setenv("HOME_OF_OTHERS", "1")
        logging.setLoggerClass(OtherLogger)
        try:
            found = changes(before, state())
        finally:
            logging.setLoggerClass(before["the class of loggers"])
    assert found == [
        "$HYBRID_BLOCKS_CHECK: None before, '1' after",
        f"the class of loggers: {logging.Logger!r} before, {OtherLogger!r} after",
    ]
    assert changes(before, state()) == []


def test_a_plugin_that_was_never_imported_counts_as_not_installed() -> None:
    there = {"the plugin in vLLM": True}
    assert changes({}, there) == ["the plugin in vLLM: False before, True after"]
    assert changes({}, {"the plugin in vLLM": False}) == []
