"""The quick swap of the tests replaces what the whole one does."""

import sys

from hybrid_blocks.vllm import install
from hybrid_blocks.vllm.level import Level
from hybrid_blocks.vllm.natural import install as natural
from hybrid_blocks.vllm.worker import block_copies


def holders_of(names: set[int]) -> set[str]:
    """Modules of vLLM that hold one of the objects."""
    return {
        name
        for name, module in list(sys.modules.items())
        if name.startswith("vllm.")
        and not names.isdisjoint(map(id, (getattr(module, "__dict__", None) or {}).values()))
    }


def test_no_module_is_left_out() -> None:
    pairs = (*install._REPLACEMENTS, *block_copies._REPLACEMENTS, *natural._functions())
    theirs, ours = ({id(pair[at]) for pair in pairs} for at in (0, 1))
    before = holders_of(theirs)
    assert len(before) > 5
    assert holders_of(ours) == set()
    install.install(Level.NATURAL)
    try:
        assert holders_of(theirs) == set()
        assert holders_of(ours) >= before
    finally:
        install.uninstall()
    assert holders_of(ours) == set()
    assert holders_of(theirs) >= before
