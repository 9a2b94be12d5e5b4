"""Figures of a process's own engines are set in gauges and counters of another kind."""

import os
from functools import partial
from pathlib import Path

import pytest
from hybrid_blocks.metrics import BLOCKS, FORKS, Sample
from hybrid_blocks.vllm.metrics import FOLDER_VARIABLE, Forwarder, Publisher
from prometheus_client import CollectorRegistry, Counter, Gauge

ENGINE = {"model_name": "m", "engine": "0"}
LIVE = ENGINE | {"pool": "", "state": "live"}


class Shown:
    """A registry that a forwarder fills, and an engine in the test's own process."""

    def __init__(self, folder: Path) -> None:
        self.registry = CollectorRegistry()
        gauge, counter = (partial(kind, registry=self.registry) for kind in (Gauge, Counter))
        self.forwarder = Forwarder(folder, gauge, counter)
        self.publisher = Publisher(ENGINE)

    def publish(self, *samples: Sample) -> None:
        self.publisher.publish(lambda: list(samples), at_once=True)
        self.forwarder.forward()

    def value(self, name: str, labels: dict[str, str]) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shown:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    return Shown(tmp_path)


def test_a_label_that_a_level_lacks_is_empty(shown: Shown) -> None:
    shown.publish(BLOCKS.sample(3, state="live"))
    assert shown.value("hybrid_blocks_blocks", LIVE) == 3
    shown.publish(BLOCKS.sample(0, state="live"))
    assert shown.value("hybrid_blocks_blocks", LIVE) == 0


def test_counters_grow_by_what_is_new_also_after_an_engine_has_started_again(shown: Shown) -> None:
    for count, sum_so_far in ((5, 5), (5, 5), (7, 7), (2, 9)):
        shown.publish(FORKS.sample(count))
        assert shown.value("hybrid_blocks_forks_total", ENGINE) == sum_so_far


def test_engines_of_others_are_left_to_them(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1 << 30)
    shown.publish(BLOCKS.sample(3, state="live"))
    assert shown.value("hybrid_blocks_blocks", LIVE) is None


def test_a_folder_that_is_gone_is_no_error(tmp_path: Path) -> None:
    Forwarder(tmp_path / "gone", Gauge, Counter).forward()
