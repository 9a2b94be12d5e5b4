"""An engine records its own traffic: what the file says is what the engine did, without prompts."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hybrid_blocks import metrics
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.recording.record_file import engines_of
from hybrid_blocks.recording.recorder import (
    MAX_WAITING,
    MAX_WAITING_TOKENS,
    OF_PROCESS,
    Finished,
    Recorder,
)
from hybrid_blocks.tools.profile.engine import Groups, make_hasher, make_scheduler
from hybrid_blocks.tools.profile.loop import Loop
from hybrid_blocks.tools.profile.workload import Settings
from hybrid_blocks.tools.trace import measure_sharing, read_trace
from hybrid_blocks.tools.trace.read import detect_format
from hybrid_blocks.tools.trace.recorded import split_digests
from hybrid_blocks.vllm import recorder
from hybrid_blocks.vllm.level import Level
from hybrid_blocks.vllm.log import logger
from hybrid_blocks.vllm.scheduler import one_call as batched
from installed import installed
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.request import Request

SHARED, TOKEN = 64, 123_457
SCHEDULERS = {"off": None, "manager": AsyncScheduler, "one call": batched.AsyncScheduler}


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "traffic.jsonl"
    monkeypatch.setenv(recorder.VARIABLE, str(path))
    recorder.install()
    yield path
    recorder.uninstall()


def jobs() -> Iterator[tuple[list[int], int]]:
    """Prompts that share their first blocks, and hold a number that no length or time is."""
    for number in range(1000):
        yield [TOKEN] * SHARED + [number % 100 + 1] * (16 + number), 3 + number % 5


def serve(name: str, num_steps: int = 60) -> dict[str, int]:
    """Run some requests; return what the engine said it found of each prompt, by its length."""
    scheduler_cls = SCHEDULERS[name]
    with installed(Level.OFF if scheduler_cls is None else Level.MANAGER):
        settings = Settings(
            level="off", groups="full", requests=4, prompt_tokens=64, shared_tokens=16
        )
        sizes: Any = {"num_requests": 4, "num_blocks": 256, "max_model_len": 2048}
        cls = scheduler_cls or AsyncScheduler
        scheduler: Any = make_scheduler(Groups("full"), scheduler_cls=cls, **sizes)
        found: dict[str, int] = {}
        loop = Loop(scheduler, jobs(), make_hasher(), settings)
        update = scheduler.update_from_output

        def noted(*arguments: Any) -> Any:
            outputs = update(*arguments)
            for output in (one for each in outputs.values() for one in each.outputs):
                if output.prefill_stats is not None:
                    found[output.request_id] = output.prefill_stats.num_cached_tokens
            return outputs

        scheduler.update_from_output = noted
        loop.run(num_steps)
        return found


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_file_says_what_the_engine_found(recording: Path, name: str) -> None:
    found = serve(name)
    recorder.uninstall()
    recorded = lines(recording)
    assert len(recorded) > 20
    prompts = [len(prompt) for prompt, _ in islice(jobs(), 100)]
    outputs = [num for _, num in islice(jobs(), 100)]
    for one in recorded:
        index = prompts.index(one["prompt_tokens"])
        assert one["output_tokens"] == outputs[index]
        assert one["found_tokens"] == found[f"request-{index}"]
        assert one["block_tokens"] == 16
        assert 0 <= one["first_token"] <= one["finished"]
    assert sum(one["found_tokens"] >= SHARED for one in recorded) > 10
    assert len({tuple(split_digests(one["blocks"])[:4]) for one in recorded}) == 1
    assert str(TOKEN) not in recording.read_text()


def test_a_replay_reads_the_file_and_finds_what_is_shared(recording: Path) -> None:
    serve("manager")
    recorder.uninstall()
    assert detect_format(recording) == "recorded"
    trace = read_trace(recording)
    assert len(trace) == len(lines(recording))
    assert (trace.arrival[1:] >= trace.arrival[:-1]).all()
    shared = measure_sharing(trace, 16)
    assert shared is not None
    assert shared.hit_tokens >= (len(trace) - 1) * SHARED


def test_two_files_share_no_digest(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(recorder.LARGEST_FILE, "4KiB")
    serve("manager")
    recorder.uninstall()
    files = sorted(recording.parent.glob("traffic*.jsonl"))
    assert len(files) > 2
    digests = [{it for one in lines(file) for it in split_digests(one["blocks"])} for file in files]
    assert all(digests)
    assert sum(map(len, digests)) == len(set.union(*digests))
    assert all(lines(file)[0]["hybrid_blocks_request"] == 0 for file in files)
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)


def test_the_engine_never_waits_for_the_file(recording: Path) -> None:
    one = Recorder(recording, 1 << 30)
    one.close()
    finished = Finished(0.0, 16, 1, 1, None, [], None, None, 0, False)
    for _ in range(MAX_WAITING + 5):
        one.put(finished)
    assert one.num_dropped == one.total_dropped == 5
    one._say_dropped("a warning")
    assert (one.num_dropped, one.total_dropped) == (0, 5)
    with installed(Level.MANAGER):
        scheduler = make_scheduler(
            Groups("full"), num_requests=4, num_blocks=256, max_model_len=2048
        )
        assert _dropped(scheduler) == []
        OF_PROCESS.append(one)
        assert _dropped(scheduler) == [5]


def _dropped(scheduler: Any) -> list[float]:
    samples = scheduler.kv_cache_manager._all_samples()
    return [it.value for it in samples if it.family == metrics.RECORD_DROPPED.family]


def test_a_guess_is_confirmed_without_a_salt_and_not_with_one(recording: Path) -> None:
    """A client that sends a likely prompt sees whether another request had the same blocks."""
    with installed(Level.MANAGER):
        hasher = make_hasher()
        one = Recorder(recording, 1 << 30)
        for number, salt in enumerate((None, None, "theirs", "theirs", "ours")):
            params = SamplingParams(max_tokens=1)
            tokens = list(range(48))
            request = Request(
                str(number), tokens, params, None, cache_salt=salt, block_hasher=hasher
            )
            about = (16, 48, 1, None, request.block_hashes, None, None, 0, False)
            one.put(Finished(request.arrival_time, *about))
    one.close()
    found = [split_digests(line["blocks"]) for line in lines(recording)]
    assert len(found[0]) == 3
    assert found[0] == found[1]
    assert found[2] == found[3]
    unequal = [set(found[number]) for number in (0, 2, 4)]
    assert len(set.union(*unequal)) == 9


LARGE = SimpleNamespace(hash_block_size=528, parallel_config=SimpleNamespace(data_parallel_index=0))
TOKENS = list(range(100))


def large(
    id_: str,
    *,
    salt: str | None = None,
    adapter: str | None = None,
    images: tuple[tuple[str, int, int], ...] = (),
    embeds: bool = False,
) -> Request:
    """A request of 100 tokens in an engine whose blocks are larger."""
    return Request(
        id_,
        None if embeds else TOKENS,
        SamplingParams(max_tokens=1),
        None,
        prompt_embeds=torch.zeros(100, 2) if embeds else None,
        cache_salt=salt,
        lora_request=LoRARequest(adapter, 1, f"/adapters/{adapter}") if adapter else None,
        mm_features=[
            MultiModalFeatureSpec(
                data=None,
                modality="image",
                identifier=name,
                mm_position=PlaceholderRange(offset=first, length=length),
            )
            for name, first, length in images
        ],
        block_hasher=make_hasher(528),
    )


def noted(path: Path, *requests: Request) -> list[list[str]]:
    """The digests that the recorder writes of requests."""
    for request in requests:
        recorder._record(LARGE, request)
    recorder.uninstall()
    assert {line["block_tokens"] for line in lines(path)} == {16}
    return [split_digests(line["blocks"]) for line in lines(path)]


def test_blocks_of_16_tokens_are_recorded_where_the_engines_are_larger(recording: Path) -> None:
    plain, again, theirs, ours, adapted, other, salted = noted(
        recording,
        large("plain"),
        large("again"),
        large("theirs", salt="theirs"),
        large("ours", salt="ours"),
        large("adapted", adapter="one"),
        large("other", adapter="two"),
        large("salted", adapter="one", salt="ours"),
    )
    assert len(plain) == 6
    assert plain == again
    apart = [plain, theirs, ours, adapted, other, salted]
    assert len({digest for digests in apart for digest in digests}) == 6 * len(apart)


def test_images_part_the_blocks_from_the_first_that_holds_them(recording: Path) -> None:
    one, same, another, moved, longer = noted(
        recording,
        large("one", images=(("cat", 40, 20),)),
        large("same", images=(("cat", 40, 20),)),
        large("another", images=(("dog", 40, 20),)),
        large("moved", images=(("cat", 41, 20),)),
        large("longer", images=(("cat", 40, 20), ("dog", 70, 30))),
    )
    assert one == same

    def num_shared(other: list[str]) -> int:
        return sum(one == two for one, two in zip(one, other, strict=True))

    assert [num_shared(it) for it in (another, moved, longer)] == [2, 2, 4]


def test_prompts_of_embeddings_keep_the_engines_digests() -> None:
    request = large("embeds", embeds=True)
    assert recorder._noted(LARGE, request).content is None
    assert recorder._noted(LARGE, large("tokens")).content is not None
    assert recorder._noted(SimpleNamespace(hash_block_size=16), large("small")).content is None


def test_each_data_parallel_engine_has_a_file_of_its_own(recording: Path) -> None:
    third = SimpleNamespace(
        hash_block_size=528, parallel_config=SimpleNamespace(data_parallel_index=2)
    )
    for scheduler in (LARGE, third, third):
        recorder._record(scheduler, large("one"))
        (one,) = OF_PROCESS
        assert one is not None
        one.close()
        OF_PROCESS.clear()
    names = {file.name for file in recording.parent.iterdir()}
    assert names == {"traffic.jsonl", "traffic.engine2.jsonl", "traffic.engine2.1.jsonl"}
    assert engines_of(recording) == {0, 2}


@pytest.mark.usefixtures("recording")
def test_an_error_of_the_thread_that_hashes_never_reaches_the_engine() -> None:
    request = large("broken")
    request._all_token_ids[3] = "no number"  # type: ignore[call-overload]
    recorder._record(LARGE, request)
    (one,) = OF_PROCESS
    assert one is not None
    one._thread.join(10)
    assert one._has_failed
    recorder._record(LARGE, large("later"))
    assert one.num_dropped == 2


def test_tokens_that_wait_for_the_file_are_bounded(recording: Path) -> None:
    one = Recorder(recording, 1 << 30)
    one.close()
    few = recorder._noted(LARGE, large("few"))
    assert few.content is not None
    many = few._replace(content=replace(few.content, num_tokens=MAX_WAITING_TOKENS))
    one.put(many)
    one.put(few)
    assert one.num_dropped == 1


@pytest.mark.parametrize("name", ["_noted", "_scheduled", "_recorder"])
def test_an_error_of_the_recorder_never_reaches_the_engine(
    recording: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fails(*_: Any) -> None:
        raise AttributeError(name)

    said: list[str] = []
    monkeypatch.setattr(recorder, name, fails)
    monkeypatch.setattr(logger, "warning", lambda text, *them: said.append(text % them))
    assert len(serve("manager")) > 20
    told = f"hybrid_blocks stops recording traffic: AttributeError: {name}; serving goes on"
    assert said == [told]
    assert not recording.exists() or not recording.read_bytes()


def test_times_are_written_after_the_arrival(recording: Path) -> None:
    one = Recorder(recording, 1 << 30)
    request = Finished(100.0, 16, 1, 1, None, [], None, None, 0, False)
    one.put(request._replace(scheduled=100.25, first_token=100.5, finished=102.0))
    one.put(request._replace(scheduled=99.5))
    one.close()
    told, early = lines(recording)
    assert [told[name] for name in ("scheduled", "first_token", "finished")] == [0.25, 0.5, 2.0]
    assert early["scheduled"] == 0, "clocks of two processes may disagree by a little"
    assert "first_token" not in early


@pytest.mark.parametrize("path", ["traffic.csv", "missing/traffic.jsonl"])
def test_a_name_that_cannot_be_written_is_refused_at_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str
) -> None:
    monkeypatch.setenv(recorder.VARIABLE, str(tmp_path / path))
    with pytest.raises(InvalidArgumentError, match=r"ends in \.jsonl, \.jsonl\.gz or \.jsonl\.zst"):
        recorder.install()
