"""The table of reasons for a lower level: code names keys and writes no sentence itself."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hybrid_blocks.reasons import REASONS, first, sentence

PACKAGE = Path(__file__).parent.parent / "python/hybrid_blocks"


def texts() -> Iterator[str]:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


IN_CODE = frozenset(texts())


@pytest.mark.parametrize("key", REASONS)
def test_code_names_the_key_and_does_not_write_the_sentence(key: str) -> None:
    assert key in IN_CODE
    assert "{" in REASONS[key].sentence or REASONS[key].sentence not in IN_CODE


def test_the_first_reason_that_holds_is_told_with_its_fields() -> None:
    conditions = {"hisparse": False, "platform": True, "aux_outputs": True}
    assert first(conditions, device="tpu") == "platform tpu"
    assert first({"hisparse": 0}) is None
    assert sentence("mamba_mode", mode="all") == "Mamba cache mode 'all'"
    with pytest.raises(KeyError, match="number"):
        sentence("group_manager", manager="RSWAManager")
