import tomllib
from importlib.resources import files

import pytest
from hybrid_blocks.tables import read_tables

HELD = {
    "metrics.toml": "parts",
    "reasons.toml": "natural",
    "variables.toml": "HYBRID_BLOCKS",
    "vllm/surface/recorded.toml": "callables",
}


@pytest.mark.parametrize("name", HELD)
def test_the_tables_of_the_package_are_read_as_toml(name: str) -> None:
    text = (files("hybrid_blocks") / name).read_text()
    tables = read_tables(text)
    assert tables == tomllib.loads(text)
    assert tables[HELD[name]]


def test_an_empty_list_and_an_empty_key_are_read_as_toml() -> None:
    text = '[a.""]\nb = []\n"c d" = "e"\n[a."f.g"]\nh = [\n  "i]", "",\n]\n'
    assert read_tables(text) == tomllib.loads(text)
