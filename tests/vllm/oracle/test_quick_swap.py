"""The quick swap of the tests replaces what the whole one does."""

import sys
from types import ModuleType

import pytest
from hybrid_blocks.vllm import install
from hybrid_blocks.vllm.level import Level
from installed import installed


def holders_of(names: set[int]) -> list[str]:
    """Modules of vLLM, and the late one, that hold one of the objects."""
    return [
        name
        for name, module in list(sys.modules.items())
        if name.startswith(("vllm.", "late"))
        and not names.isdisjoint(map(id, (getattr(module, "__dict__", None) or {}).values()))
    ]


def test_no_module_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = ({id(pair[at]) for pair in install._REPLACEMENTS} for at in (0, 1))
    before = holders_of(theirs)
    assert len(before) > len(theirs)
    assert holders_of(ours) == []
    late = ModuleType("late")
    late.name = install.VllmBlockPool  # type: ignore[attr-defined]
    for _ in range(2):
        with installed(Level.NATURAL):
            assert holders_of(theirs) == []
            assert set(holders_of(ours)) >= set(before)
        assert holders_of(ours) == []
        # Loaded between two swaps.
        monkeypatch.setitem(sys.modules, "late", late)
    assert set(holders_of(theirs)) == {*before, "late"}
