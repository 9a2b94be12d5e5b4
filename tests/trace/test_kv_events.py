"""KV events of an engine become a file without tokens, and the file becomes requests."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.trace import DamagedLineError, Trace, measure_sharing, read_trace
from hybrid_blocks.trace.digests import split
from hybrid_blocks.trace.kv_events.follow import Follower, Message
from hybrid_blocks.trace.kv_events.line import parse
from hybrid_blocks.trace.kv_events.message import decode
from hybrid_blocks.trace.kv_events.recorder import EventRecorder
from hybrid_blocks.trace.lines import LineReader
from hybrid_blocks.trace.read import detect_format
from hybrid_blocks.trace.record_file import ENDINGS
from kv_messages import message, name, names, removed, stored

LARGEST = 1 << 30


def record(path: Path, *payloads: bytes, first: int = 0) -> list[dict[str, Any]]:
    recorder = EventRecorder(path, LARGEST)
    follower = Follower(recorder)
    for number, payload in enumerate(payloads, start=first):
        follower.take(number, payload)
    recorder.close()
    return [json.loads(line) for line in path.read_text().splitlines()]


def read(tmp_path: Path, *payloads: bytes) -> Trace:
    path = tmp_path / "events.jsonl"
    record(path, *payloads)
    return read_trace(path)


def lengths(trace: Trace) -> list[tuple[int, int]]:
    return list(zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True))


def test_a_file_holds_digests_and_no_token(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    event = stored(names(1, 2), session_id="a session", lora_name="an adapter", group_idx=0)
    lines = record(path, message(5.0, event), message(6.5, removed(names(2), group_idx=0)))
    assert path.stat().st_mode & 0o777 == 0o600
    assert [line["what"] for line in lines] == ["stored", "removed"]
    assert [line["at"] for line in lines] == [0.0, 1.5]
    assert split(lines[1]["blocks"]) == split(lines[0]["blocks"])[1:]
    assert (lines[0]["tokens"], lines[0]["session"], lines[0]["adapter"]) == (32, 0, 0)
    for secret in ("777777", "a session", "an adapter", name(1).hex()):
        assert secret not in path.read_text()


def test_two_files_of_the_same_events_share_no_digest(tmp_path: Path) -> None:
    payload = message(0.0, stored(names(1, 2)))
    first = split(record(tmp_path / "a.jsonl", payload)[0]["blocks"])
    second = split(record(tmp_path / "b.jsonl", payload)[0]["blocks"])
    assert len({*first, *second}) == 4


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_full_file_is_followed_by_another(tmp_path: Path, ending: str) -> None:
    recorder = EventRecorder(tmp_path / f"events{ending}", 1)
    payload = message(0.0, stored(names(1, 2), session_id="one"), stored(names(3)))
    for number in range(3):
        recorder.put(decode(payload))
        recorder.flush()
        assert recorder.path.name == f"events{f'.{number}' if number else ''}{ending}"
    size = recorder.num_bytes
    recorder.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    assert 0 < size <= sum(file.stat().st_size for file in files)
    lines = [list(LineReader(file, "raise").parse(parse)) for file in files]
    assert [[line.number for line in each] for each in lines] == [[0, 1]] * 3
    assert [each[0].session for each in lines] == [0] * 3
    digests = {digest for each in lines for line in each for digest in line.digests}
    assert len(digests) == 9, "no two files share a digest"
    assert recorder.num_batches == 3
    assert all(len(read_trace(file)) == 2 for file in files)


@pytest.mark.parametrize(
    "text",
    ['"blocks":"AAAA"', '"blocks":"","parent":"AAAA"', '"blocks":"AAAA","parent":"AAAAAAAA"'],
)
def test_a_digest_that_is_cut_off_is_damage(text: str) -> None:
    with pytest.raises(ValueError, match="digests have 12 characters each, and these have 4"):
        parse(b'{"hybrid_blocks_event":0,"at":0.0,"what":"removed",%s}' % text.encode())


@pytest.mark.parametrize("hashes", [[b"one", b"two"], [-5, 2**63]])
def test_lists_of_older_engines_are_read_as_maps_are(hashes: list[Any]) -> None:
    old = message(
        1.0,
        ["BlockStored", hashes, b"parent", list(range(32)), 16, None, "GPU"],
        ["BlockRemoved", hashes],
        ["AllBlocksCleared"],
    )
    new = message(1.0, stored(hashes, b"parent"), removed(hashes), {"type": "AllBlocksCleared"})
    assert decode(old) == decode(new)


def test_events_of_host_memory_and_unknown_ones_are_counted() -> None:
    batch = decode(
        message(0.0, stored(names(1), medium="CPU"), {"type": "BlockPinned"}, stored(names(2)))
    )
    assert (len(batch.events), batch.num_elsewhere, batch.num_unknown) == (1, 1, 1)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", message(0.0, []), message(0.0, {"type": "BlockStored", "block_hashes": 3})],
)
def test_a_message_that_cannot_be_read_is_counted(tmp_path: Path, payload: bytes) -> None:
    recorder = EventRecorder(tmp_path / "events.jsonl", LARGEST)
    follower = Follower(recorder)
    follower.take(0, payload)
    follower.take(1, message(0.0, stored(names(1))))
    recorder.close()
    assert (follower.num_damaged, recorder.num_batches, recorder.num_lost) == (1, 1, 0)
    assert follower.last_error


def test_lost_messages_are_asked_for_again(tmp_path: Path) -> None:
    payloads = [message(at, stored(names(at + 1))) for at in range(9)]
    asked: list[int] = []

    def again(number: int) -> Iterator[Message]:
        asked.append(number)
        # The engine keeps the last messages alone, and has sent more meanwhile.
        yield from [(at, payloads[at]) for at in range(max(number, 3), 8)]

    recorder = EventRecorder(tmp_path / "events.jsonl", LARGEST)
    follower = Follower(recorder, again)
    follower.take(0, payloads[0])
    for number in (5, 6, 7, 8):
        follower.take(number, payloads[number])
    recorder.close()
    assert asked == [1]
    assert recorder.num_lost == 2
    lines = [json.loads(line) for line in recorder.path.read_text().splitlines()]
    assert [line["what"] for line in lines] == ["stored", "lost", *["stored"] * 6]
    assert [line["at"] for line in lines] == [0, 0, 3, 4, 5, 6, 7, 8]
    notes = read_trace(recorder.path).notes
    assert any("2 messages of the engine are missing" in note for note in notes)


def test_messages_of_before_the_start_are_taken_once(tmp_path: Path) -> None:
    payloads = [message(at, stored(names(at + 1))) for at in range(4)]
    recorder = EventRecorder(tmp_path / "events.jsonl", LARGEST)
    follower = Follower(recorder, lambda number: iter(list(enumerate(payloads))[number:3]))
    follower.begin()
    for number in (1, 2, 3):
        follower.take(number, payloads[number])
    recorder.close()
    assert (recorder.num_batches, recorder.num_lost, follower.num_restarts) == (4, 0, 0)


def test_an_engine_that_begins_again_has_an_empty_cache(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    recorder = EventRecorder(path, LARGEST)
    follower = Follower(recorder)
    for number, at in ((0, 1.0), (1, 2.0), (0, 30.0), (1, 31.0)):
        follower.take(number, message(at, stored(names(number + 1))))
    recorder.close()
    whats = [json.loads(line)["what"] for line in path.read_text().splitlines()]
    assert whats == ["stored", "stored", "cleared", "stored", "stored"]
    assert (follower.num_restarts, recorder.num_lost) == (1, 0)


def test_blocks_that_follow_each_other_are_one_request(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        message(0.0, stored(names(1, 2, 3))),
        message(0.1, stored(names(4, 5), parent=name(3))),
        message(0.5, stored(names(6), parent=name(5))),
        message(0.9, stored(names(7), parent=name(6))),
    )
    assert lengths(trace) == [(81, 32)]
    assert detect_format(tmp_path / "events.jsonl") == "kv-events"


def test_a_request_that_found_blocks_has_them_in_its_prompt(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        message(0.0, stored(names(1, 2, 3))),
        message(1.0, stored(names(8, 9), parent=name(2))),
    )
    assert lengths(trace) == [(49, 1), (65, 1)]
    assert trace.arrival.tolist() == [0.0, 1.0]
    assert trace.token_ids(0)[:32].tolist() == trace.token_ids(1)[:32].tolist()
    assert trace.token_ids(0)[32] != trace.token_ids(1)[32]


def test_a_next_turn_is_told_apart_by_its_prompt_or_its_time(tmp_path: Path) -> None:
    answer = [
        message(0.2 * number, stored(names(number), parent=name(number - 1)))
        for number in (2, 3, 4)
    ]
    turn = stored(names(5, 6), parent=name(4))
    trace = read(tmp_path, message(0.0, stored(names(1))), *answer, message(1.0, turn))
    assert lengths(trace) == [(17, 48), (97, 1)]
    assert measure_sharing(trace, 16).hit_tokens == 64  # type: ignore[union-attr]


def test_a_pause_ends_a_request(tmp_path: Path) -> None:
    late = message(9.0, stored(names(2), parent=name(1)))
    assert lengths(read(tmp_path, message(0.0, stored(names(1))), late)) == [(17, 1), (33, 1)]


def test_what_an_engine_reports_as_found_begins_a_request(tmp_path: Path) -> None:
    found = stored(names(1, 2, 3))
    trace = read(
        tmp_path,
        message(0.0, found),
        message(5.0, found),
        message(5.1, found),  # the request waits and is looked up again
        message(5.2, stored(names(4), parent=name(3))),
        message(9.0, found),
    )
    assert lengths(trace) == [(49, 1), (65, 1), (49, 1)]
    assert trace.arrival.tolist() == [0.0, 5.0, 9.0]


def test_attention_tells_the_requests_of_a_hybrid(tmp_path: Path) -> None:
    state = stored(names(3), group_idx=1) | {"token_ids": [1] * 48}
    attention = stored(names(1, 2, 3), group_idx=0)
    trace = read(tmp_path, message(0.0, state, attention))
    assert lengths(trace) == [(49, 1)]


def test_prompts_that_began_before_the_recording_are_counted(tmp_path: Path) -> None:
    trace = read(tmp_path, message(0.0, stored(names(5), parent=name(4))))
    assert lengths(trace) == [(33, 1)]
    assert any("1 blocks follow others" in note for note in trace.notes)
    assert any("guessed" in note for note in trace.notes)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    record(path, message(0.0, stored(names(1))))
    text = path.read_text()
    path.write_text(text + '{"hybrid_blocks_event":1,"at":0.0,"what":"stored"}\n')
    with pytest.raises(DamagedLineError, match=r"events\.jsonl:2: blocks were stored"):
        read_trace(path)
    assert read_trace(path, on_error="skip").skipped == (2,)


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"ends in \.jsonl"):
        EventRecorder(tmp_path / "events.csv", LARGEST)
