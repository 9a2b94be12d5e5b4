"""Figures travel from engines to the server through files."""

import os
import time
from pathlib import Path

import pytest
from hybrid_blocks.metrics import BLOCKS, CHECKPOINTS_DROPPED, INFO, Sample
from hybrid_blocks.vllm.metrics import FOLDER_VARIABLE, EngineCollector, Publisher
from process import printed_by_python
from prometheus_client import CollectorRegistry, generate_latest

ENGINE = {"model_name": "m", "engine": "0"}
LABELS = 'engine="0",model_name="m"'


def blocks(state: str, value: float) -> Sample:
    return BLOCKS.sample(value, state=state)


def shown(folder: Path) -> list[str]:
    registry = CollectorRegistry()
    registry.register(EngineCollector(folder))
    return [line for line in generate_latest(registry).decode().splitlines() if line[0] != "#"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


def test_what_an_engine_publishes_has_the_labels_of_vllms_figures(folder: Path) -> None:
    dropped = CHECKPOINTS_DROPPED.sample(3, reason="evicted")
    Publisher(ENGINE).publish(lambda: [blocks("live", 2), blocks("free", 5), dropped])
    assert shown(folder) == [
        f'hybrid_blocks_blocks{{{LABELS},state="live"}} 2.0',
        f'hybrid_blocks_blocks{{{LABELS},state="free"}} 5.0',
        f'hybrid_blocks_checkpoints_dropped_total{{{LABELS},reason="evicted"}} 3.0',
    ]


def test_what_never_changes_is_shown_before_the_first_step_and_after_it(folder: Path) -> None:
    info = INFO.sample(1, version="0.1", vllm_version="0.33", level="pool", reason='no "states"')
    publisher = Publisher(ENGINE, [info])
    (line,) = shown(folder)
    assert line.startswith("hybrid_blocks_info{")
    assert r'reason="no \"states\""' in line
    publisher.publish(lambda: [blocks("live", 2)])
    assert shown(folder) == [line, f'hybrid_blocks_blocks{{{LABELS},state="live"}} 2.0']


def test_figures_are_made_once_a_second(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = Publisher(ENGINE)
    publisher.publish(lambda: [blocks("live", 1)])
    publisher.publish(lambda: pytest.fail("too early"))
    later = time.monotonic() + 2
    monkeypatch.setattr(time, "monotonic", lambda: later)
    publisher.publish(lambda: [blocks("live", 7)])
    assert shown(folder) == [f'hybrid_blocks_blocks{{{LABELS},state="live"}} 7.0']


def test_what_may_be_the_last_for_long_is_written_at_once(folder: Path) -> None:
    publisher = Publisher(ENGINE)
    publisher.publish(lambda: [blocks("live", 1)])
    publisher.publish(lambda: [blocks("live", 0)], at_once=True)
    assert shown(folder) == [f'hybrid_blocks_blocks{{{LABELS},state="live"}} 0.0']


def copy_as(folder: Path, process: int) -> None:
    (folder / f"{process}.json").write_bytes((folder / f"{os.getpid()}.json").read_bytes())


def test_engines_of_different_levels_are_shown_side_by_side(folder: Path) -> None:
    Publisher({"model_name": "m", "engine": "1"}).publish(
        lambda: [BLOCKS.sample(4, pool="states", state="live")]
    )
    copy_as(folder, os.getppid())
    Publisher(ENGINE).publish(lambda: [blocks("live", 2)])
    assert sorted(shown(folder)) == [
        f'hybrid_blocks_blocks{{{LABELS},state="live"}} 2.0',
        'hybrid_blocks_blocks{engine="1",model_name="m",pool="states",state="live"} 4.0',
    ]


def test_of_two_processes_with_the_same_labels_the_newer_is_shown(folder: Path) -> None:
    Publisher(ENGINE).publish(lambda: [blocks("live", 1)])
    copy_as(folder, os.getppid())
    os.utime(folder / f"{os.getppid()}.json", ns=(1, 1))
    Publisher(ENGINE).publish(lambda: [blocks("live", 2)])
    assert shown(folder) == [f'hybrid_blocks_blocks{{{LABELS},state="live"}} 2.0']


def test_a_file_of_another_release_hides_no_engine(folder: Path) -> None:
    Publisher(ENGINE).publish(lambda: [blocks("live", 1)])
    (folder / f"{os.getppid()}.json").write_text('[{"name": "hybrid_blocks_blocks"}]')
    assert len(shown(folder)) == 1


def test_an_engine_that_ended_is_no_longer_shown(folder: Path) -> None:
    code = (
        "from hybrid_blocks.metrics import BLOCKS\n"
        "from hybrid_blocks.vllm.metrics import Publisher\n"
        "Publisher({}).publish(lambda: [BLOCKS.sample(1)])"
    )
    printed_by_python("-c", code)
    assert len(list(folder.glob("*.json"))) == 1
    assert shown(folder) == []


def test_an_engine_outlives_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder / "gone"))
    publisher = Publisher(ENGINE)
    publisher.publish(lambda: [blocks("live", 1)])
    assert list(folder.iterdir()) == []


def test_without_a_folder_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    Publisher(ENGINE).publish(lambda: pytest.fail("no server would read it"))
