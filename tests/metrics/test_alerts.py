"""The alerts in `dashboards/` ask for figures that exist, name a page each, and are tested."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from board import OF_VLLM
from hybrid_blocks.metrics import ENGINE, OFFLOAD

ROOT = Path(__file__).parents[2]
DASHBOARDS = ROOT / "dashboards"
LABELS = {figure.name: set(figure.labels) for figure in (*ENGINE, *OFFLOAD)}
GROUPS = yaml.safe_load((DASHBOARDS / "alerts.yml").read_text())["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
TESTS: list[dict[str, Any]] = yaml.safe_load((DASHBOARDS / "alerts_test.yml").read_text())["tests"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_figures_and_labels_that_exist(rule: dict[str, Any]) -> None:
    names = re.findall(r"(?:vllm:|hybrid_blocks_)\w+", rule["expr"])
    assert names
    assert set(names) <= {*LABELS, *OF_VLLM}
    for name, matchers in re.findall(r"(hybrid_blocks_\w+)\{(.*?)\}", rule["expr"]):
        assert set(re.findall(r"(\w+)[!=]", matchers)) <= LABELS[name]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_names_a_section_that_there_is(rule: dict[str, Any]) -> None:
    path, _, section = rule["annotations"]["page"].partition("#")
    headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert not section or section in anchors


def test_each_alert_fires_in_one_test_and_is_silent_in_another() -> None:
    tests = [one for test in TESTS for one in test["alert_rule_test"]]
    expected = {(one["alertname"], bool(one.get("exp_alerts"))) for one in tests}
    assert expected == {(rule["alert"], fires) for rule in RULES for fires in (False, True)}
