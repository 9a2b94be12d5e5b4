"""vLLM's own publisher, recorded: from an engine's steps to the hits that a replay finds."""

import json
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hybrid_blocks.cli import app
from hybrid_blocks.profile.engine import Groups, make_hasher, make_scheduler
from hybrid_blocks.profile.loop import Loop
from hybrid_blocks.profile.workload import Settings
from hybrid_blocks.trace import measure_sharing, read_trace
from hybrid_blocks.trace.kv_events.follow import Follower
from hybrid_blocks.trace.kv_events.recorder import EventRecorder
from hybrid_blocks.trace.kv_events.subscriber import Subscriber
from hybrid_blocks.vllm import installation
from hybrid_blocks.vllm.level import Level
from typer.testing import CliRunner
from vllm.config.kv_events import KVEventsConfig
from vllm.distributed.kv_events import BlockStored, KVEventBatch, ZmqEventPublisher

BLOCK = 16
LARGEST = 1 << 30


class Publishers:
    """vLLM's publishers on ports of the system's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count()
        self._open: list[ZmqEventPublisher] = []

    def address(self) -> str:
        return f"ipc://{self._folder}/{next(self._numbers)}"

    def new(self, address: str, replay: str | None = None) -> ZmqEventPublisher:
        one = ZmqEventPublisher(0, address, replay)
        self._open.append(one)
        return one

    def close(self) -> None:
        for one in self._open:
            one.shutdown()


@pytest.fixture
def publishers(tmp_path: Path) -> Iterator[Publishers]:
    made = Publishers(tmp_path)
    yield made
    made.close()


def batch(number: int) -> KVEventBatch:
    stored = BlockStored(
        block_hashes=[b"block %d" % number],
        parent_block_hash=b"block %d" % (number - 1) if number else None,
        token_ids=[31_337] * BLOCK,
        block_size=BLOCK,
        lora_id=None,
        medium="GPU",
        lora_name=None,
    )
    return KVEventBatch(ts=float(number), events=[stored])


def joined(publisher: ZmqEventPublisher, engine: Subscriber) -> int:
    """Publish until the subscription has begun; return how many messages that took."""
    for number in count():
        publisher.publish(batch(number))
        if (message := engine.wait(0.2)) is not None:
            while (later := engine.wait(0.2)) is not None:
                message = later
            assert message[0] == number
            return number + 1
    raise AssertionError


def test_messages_of_vllms_publisher_are_recorded(publishers: Publishers, tmp_path: Path) -> None:
    address, replay = publishers.address(), publishers.address()
    publisher = publishers.new(address, replay)
    recorder = EventRecorder(tmp_path / "events.jsonl", LARGEST)
    with Subscriber(address, replay) as engine:
        follower = Follower(recorder, engine.again)
        number = joined(publisher, engine)
        follower.begin()
        for more in range(3):
            publisher.publish(batch(number + more))
            message = engine.wait(30)
            assert message is not None
            follower.take(*message)
    recorder.close()
    assert (recorder.num_batches, recorder.num_lost) == (number + 3, 0)
    assert "31337" not in recorder.path.read_text()


def test_what_was_lost_comes_from_the_replay_socket(publishers: Publishers, tmp_path: Path) -> None:
    address, replay = publishers.address(), publishers.address()
    publisher = publishers.new(address, replay)
    recorder = EventRecorder(tmp_path / "events.jsonl", LARGEST)
    with Subscriber(address, replay) as engine:
        number = joined(publisher, engine)
        follower = Follower(recorder, engine.again)
        follower.begin()
        for more in range(6):
            publisher.publish(batch(number + more))
        for more in range(6):
            message = engine.wait(30)
            assert message is not None
            if more in {0, 5}:  # the others are lost on the way
                follower.take(*message)
    recorder.close()
    assert (recorder.num_batches, recorder.num_lost) == (number + 6, 0)
    lines = [json.loads(line) for line in recorder.path.read_text().splitlines()]
    assert [line["at"] for line in lines] == [float(at) for at in range(number + 6)]


def test_a_publisher_without_replay_leaves_a_gap_that_the_file_names(
    publishers: Publishers, tmp_path: Path
) -> None:
    address = publishers.address()
    publisher = publishers.new(address)
    recorder = EventRecorder(tmp_path / "events.jsonl", LARGEST)
    with Subscriber(address, None) as engine:
        follower = Follower(recorder)
        number = joined(publisher, engine)
        publisher.publish(batch(number))
        message = engine.wait(30)
        assert message is not None
        follower.take(*message)
    recorder.close()
    assert recorder.num_lost == number
    assert any("missing" in note for note in read_trace(recorder.path).notes)


def jobs() -> Iterator[tuple[list[int], int]]:
    for number in range(1000):
        yield [9_999] * 64 + [number % 100 + 1] * (16 + number), 3 + number % 40


def serve(publisher: Callable[[KVEventBatch], None], level: Level | None) -> dict[str, int]:
    """Run some requests; return the tokens that the engine found of each, by its id."""
    if level is not None:
        installation.install(level)
    try:

        def configure(config: Any) -> None:
            config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")

        scheduler: Any = make_scheduler(
            Groups("full"),
            num_requests=4,
            num_blocks=4000,
            max_model_len=2048,
            configure=configure,
        )
        scheduler.kv_event_publisher.publish = publisher
        found: dict[str, int] = {}
        settings = Settings(level="off", groups="full", requests=4, prompt_tokens=64)
        loop = Loop(scheduler, jobs(), make_hasher(), settings)
        update = scheduler.update_from_output

        def noted(*arguments: Any) -> Any:
            outputs = update(*arguments)
            for output in (one for each in outputs.values() for one in each.outputs):
                if output.prefill_stats is not None:
                    found[output.request_id] = output.prefill_stats.num_cached_tokens
            return outputs

        scheduler.update_from_output = noted
        loop.run(200)
        return found
    finally:
        if level is not None:
            installation.uninstall()


@pytest.mark.parametrize("level", [None, Level.MANAGER])
def test_a_replay_finds_what_the_engine_found(
    publishers: Publishers, tmp_path: Path, level: Level | None
) -> None:
    address, replay = publishers.address(), publishers.address()
    publisher = publishers.new(address, replay)
    recorder = EventRecorder(tmp_path / "events.jsonl", LARGEST)
    sent: list[KVEventBatch] = []
    found = serve(sent.append, level)
    for number, one in enumerate(sent):
        one.ts = number * 0.01
        publisher.publish(one)
    with Subscriber(address, replay) as engine:
        follower = Follower(recorder, engine.again)
        while recorder.num_batches < len(sent):
            follower.begin()
    recorder.close()
    assert "9999" not in recorder.path.read_text()
    trace = read_trace(recorder.path)
    assert abs(len(trace) - len(found)) <= 4, "those that run last have no answer yet"
    shared = measure_sharing(trace, BLOCK)
    assert shared is not None
    assert shared.hit_tokens == sum(found.values())


def test_a_subscriber_knows_whether_a_publisher_has_answered(publishers: Publishers) -> None:
    address = publishers.address()
    with Subscriber(address, None) as engine:
        engine.wait(0.05)
        assert not engine.has_met
        joined(publishers.new(address), engine)
        assert engine.has_met


def test_the_command_ends_by_its_time_and_names_what_is_missing(
    publishers: Publishers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = publishers.address()
    file = tmp_path / "events.jsonl.gz"
    ran = CliRunner().invoke(app, ["record", address, str(file), "--seconds", "0.1"])
    assert ran.exit_code == 0
    assert "0 messages, 0 blocks stored" in ran.output
    assert f"no publisher answered at {address}" in " ".join(ran.output.split())
    monkeypatch.setattr(Subscriber, "has_met", True)
    ran = CliRunner().invoke(app, ["record", address, str(file), "--seconds", "0.1"])
    assert ran.exit_code == 0
    assert "no publisher" not in ran.output
    assert "enable_kv_cache_events" in ran.output
    ran = CliRunner().invoke(app, ["record", "tcp://*:5557", str(file)])
    assert ran.exit_code == 2
    assert "write tcp://HOST:PORT" in ran.output


def test_the_command_records_until_it_is_stopped(publishers: Publishers, tmp_path: Path) -> None:
    address = publishers.address()
    publisher = publishers.new(address)
    stop = threading.Event()

    def publish() -> None:
        for number in count():
            publisher.publish(batch(number))
            if stop.wait(0.02):
                return

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        file = tmp_path / "events.jsonl"
        ran = CliRunner().invoke(app, ["record", address, str(file), "--most", "2KiB"])
    finally:
        stop.set()
        thread.join()
    assert ran.exit_code == 0
    assert "and --most" in ran.output
    assert len(read_trace(file)) >= 1
