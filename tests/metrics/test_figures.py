"""Names of figures follow Prometheus's rules, and pools have names."""

import re
from pathlib import Path

import pytest
from hybrid_blocks.metrics import (
    BLOCKS,
    ENGINE,
    HITS,
    OFFLOAD,
    OFFLOAD_PREFIX,
    SHADOW,
    Figure,
    pool_names,
)

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("figure", [*ENGINE, *OFFLOAD, *SHADOW], ids=lambda figure: figure.name)
def test_a_name_says_whose_and_of_what_kind_a_figure_is(figure: Figure) -> None:
    assert re.fullmatch(r"hybrid_blocks_[a-z_]+", figure.name)
    assert figure.name.endswith("_total") == (figure.kind == "counter")
    assert figure.documentation.endswith(".")
    assert not {"model_name", "engine"} & set(figure.labels)


def test_no_name_is_given_twice() -> None:
    names = [figure.name for figure in (*ENGINE, *OFFLOAD, *SHADOW)]
    assert len(set(names)) == len(names)


def test_a_counter_is_declared_without_its_ending() -> None:
    assert (HITS.family, BLOCKS.family) == ("hybrid_blocks_hits", "hybrid_blocks_blocks")


def test_a_sample_has_no_label_that_its_figure_lacks() -> None:
    assert BLOCKS.sample(3, state="live").labels == {"state": "live"}
    with pytest.raises(ValueError, match="owner"):
        BLOCKS.sample(3, owner="states")


@pytest.mark.parametrize(
    ("pools", "are_states", "names"),
    [
        ([0, 0, 1], [False, False, True], ("attention", "states")),
        ([0, 1, 2], [False, True, False], ("attention", "states", "attention_2")),
        ([0, 0], [False, True], ("attention_and_states",)),
        ([0], [False], ("attention",)),
        ([], [], ()),
    ],
)
def test_pools_are_named_by_what_they_hold(
    pools: list[int], are_states: list[bool], names: tuple[str, ...]
) -> None:
    assert pool_names(len(names), pools, are_states) == names


def test_the_docs_of_offload_name_figures_that_are_there() -> None:
    every = re.findall(r"^\| `(\w+)` \|", (DOCS / "reference/metrics.md").read_text(), re.M)
    names = {figure.name for figure in OFFLOAD}
    assert names <= set(every)
    _, _, page = (DOCS / "offload.md").read_text().partition("\n## Metrics\n")
    rows = re.findall(r"^\| (`.*?) \|", page.partition("\n## ")[0], re.M)
    told = {OFFLOAD_PREFIX + name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(told) >= 5
    assert told <= names
