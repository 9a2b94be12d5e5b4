"""The frame in the documents is that of a real engine's scrapes."""

import re
from pathlib import Path

import pytest
from hybrid_blocks.tools.top.frame import View, frame
from hybrid_blocks.tools.top.read import Reading, parse

ROOT = Path(__file__).parents[2]
SCRAPED = Path(__file__).parent / "scraped"
BETWEEN_S = 2.0


@pytest.fixture
def readings() -> tuple[Reading, Reading]:
    before = parse((SCRAPED / "before.txt").read_text(), 0.0)
    return before, parse((SCRAPED / "now.txt").read_text(), BETWEEN_S)


def test_the_documents_show_a_real_engine(readings: tuple[Reading, Reading]) -> None:
    view = View("http://localhost:8000/metrics   q quits", *readings)
    lines = frame(view, 80).plain.splitlines()
    shown = "".join(f"{line.rstrip()}\n" for line in lines)
    text = (ROOT / "docs/vllm.md").read_text()
    found = re.search(r"^```\n(http://localhost:8000/metrics.*?)^```$", text, re.S | re.M)
    assert found is not None
    assert found[1] == shown


@pytest.mark.parametrize("width", [20, 39, 40, 80, 200])
def test_a_real_engine_fits_every_terminal(readings: tuple[Reading, Reading], width: int) -> None:
    lines = frame(View("http://localhost:8000/metrics", *readings), width).plain.splitlines()
    assert max(map(len, lines)) <= width
    for words in ("requests", "slabs", "checkpoints"):
        assert any(line.startswith(words) for line in lines)
