"""Logs of OpenAI-style requests, with a tokenizer and without one."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hybrid_blocks.cli import app
from hybrid_blocks.trace import DamagedLineError, Trace, TraceError, read_trace
from typer.testing import CliRunner

SYSTEM = {"role": "system", "content": "You answer in one word. " * 20}
ASKS = {"role": "user", "content": "Which layers keep a state?"}
ANSWER = "Recurrent ones."
FIRST = {
    "timestamp": "2026-11-26T10:00:00Z",
    "session_id": "a",
    "request": {"model": "m", "messages": [SYSTEM, ASKS]},
    "response": {
        "choices": [{"message": {"role": "assistant", "content": ANSWER}}],
        "usage": {"prompt_tokens": 150, "completion_tokens": 5},
    },
}
SECOND = {
    "timestamp": "2026-11-26T10:00:30+00:00",
    "session_id": "a",
    "body": {
        "messages": [
            SYSTEM,
            ASKS,
            {"role": "assistant", "content": ANSWER},
            {"role": "user", "content": [{"type": "text", "text": "And the others?"}]},
        ],
        "max_tokens": 7,
    },
}
PLAIN = {"messages": [SYSTEM, {"role": "user", "content": "Why?"}], "created": 1_795_687_260}
LINES = [FIRST, SECOND, PLAIN]


def write(folder: Path, lines: list[Any]) -> Path:
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def tokens(trace: Trace, request: int) -> list[int]:
    ids: list[int] = trace.token_ids(request).tolist()
    return ids


def common(trace: Trace, one: int, other: int) -> int:
    pairs = zip(tokens(trace, one), tokens(trace, other), strict=False)
    return next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), -1)


class WordTokenizer:
    """A token a word, and one for each line break."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}

    @classmethod
    def from_buffer(cls, content: bytes) -> "WordTokenizer":
        if not content:
            raise ValueError("an empty file")
        return cls()

    def get_vocab_size(self, *, with_added_tokens: bool) -> int:
        assert with_added_tokens
        return 1000

    def encode(self, text: str, *, add_special_tokens: bool) -> "WordTokenizer":
        assert not add_special_tokens
        words = text.replace("\n", " \n ").split(" ")
        self.ids = [self.words.setdefault(word, len(self.words)) for word in words if word]
        return self


@pytest.fixture
def tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = ModuleType("tokenizers")
    package.Tokenizer = WordTokenizer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tokenizers", package)
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    return path


def test_a_next_turn_repeats_the_prompt_and_its_answer(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, LINES))
    assert tokens(trace, 1)[: len(tokens(trace, 0))] == tokens(trace, 0)
    assert trace.session.tolist() == [0, 0, -1]
    assert trace.output_tokens.tolist()[1:] == [7, 1]
    assert trace.arrival.tolist()[:2] == [0, 30]
    assert 0 < common(trace, 0, 2) < trace.prompt_tokens[2]


def test_tokens_are_those_of_the_tokenizer(tmp_path: Path, tokenizer: Path) -> None:
    trace = read_trace(write(tmp_path, LINES), tokenizer=tokenizer)
    words = ["<|im_start|>system", "\n", *SYSTEM["content"].split(), "<|im_end|>", "\n"]
    assert common(trace, 0, 2) == len(words) + 2
    assert tokens(trace, 0)[-2:] == tokens(trace, 1)[len(tokens(trace, 0)) - 2 :][:2]
    assert trace.output_tokens[0] == 2
    assert max(tokens(trace, 0)) < 1000 <= min(tokens(trace, 1)[-7:])
    by_folder = read_trace(write(tmp_path, LINES), "openai", tokenizer=tokenizer.parent)
    assert tokens(by_folder, 0) == tokens(trace, 0)


def test_conversations_as_text_take_a_tokenizer_too(tmp_path: Path, tokenizer: Path) -> None:
    talk = {"conversations": [{"from": "human", "value": "a b c"}, {"from": "gpt", "value": "d e"}]}
    trace = read_trace(write(tmp_path, [talk]), tokenizer=tokenizer)
    assert (trace.prompt_tokens[0], trace.output_tokens[0]) == (3, 2)


def test_tools_and_calls_are_part_of_the_prompt(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {}}]}
    lines = [
        {"messages": [ASKS]},
        {"messages": [ASKS], "tools": [{"type": "function"}]},
        {"messages": [ASKS, call, {"role": "tool", "content": "ok"}]},
        {"prompt": "Once upon a time", "max_tokens": 3},
    ]
    trace = read_trace(write(tmp_path, lines), "openai")
    lengths = trace.prompt_tokens.tolist()
    assert lengths[1] > lengths[0] < lengths[2]
    assert common(trace, 0, 1) == 0
    assert lengths[3] == 4
    assert trace.arrival.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "response",
    [
        ANSWER,
        {"text": ANSWER},
        {"body": ANSWER},
        {"body": {"text": ANSWER}},
        {"choices": [{"text": ANSWER}]},
        FIRST["response"],
        {"status_code": 200, "body": FIRST["response"]},
    ],
)
def test_a_response_is_a_text_or_what_the_api_returned(tmp_path: Path, response: Any) -> None:
    trace = read_trace(write(tmp_path, [FIRST | {"response": response}, SECOND]))
    assert trace.output_tokens[0] == -(-len(ANSWER) // 4)
    assert trace.guessed_answers == 0
    assert tokens(trace, 1)[: len(tokens(trace, 0))] == tokens(trace, 0)


@pytest.mark.parametrize(
    ("more", "guessed", "output"),
    [
        ({}, 1, 1),
        ({"response": {"error": "busy"}}, 1, 1),
        ({"response": ["a piece", "of a stream"], "max_tokens": 9}, 1, 9),
        ({"max_tokens": 9}, 0, 9),
        ({"response": {"usage": {"completion_tokens": 0}}}, 0, 1),
        ({"response": ""}, 0, 1),
    ],
)
def test_an_answer_of_unknown_length_is_counted(
    tmp_path: Path, more: dict[str, Any], guessed: int, output: int
) -> None:
    trace = read_trace(write(tmp_path, [{"messages": [ASKS], **more}, SECOND]))
    assert (trace.guessed_answers, trace.output_tokens[0]) == (guessed, output)


def test_the_replay_warns_of_answers_of_unknown_length(tmp_path: Path) -> None:
    lines = [PLAIN, FIRST | {"response": {"error": "busy"}}, SECOND]
    options = ["--num-blocks", "unbounded", "--limit", "1"]
    result = CliRunner().invoke(app, ["replay", str(write(tmp_path, lines)), *options])
    assert result.exit_code == 0, result.output
    assert (
        "warning: 2 lines do not tell the length of the answer: it counts max_tokens, or else 1 "
        'token. response is a text, {"text": …}, or what the API returned'
    ) in result.stderr


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"messages": []}', "missing or empty"),
        ('{"messages": [{"content": "x"}]}', "no role"),
        ('{"messages": [{"role": "user", "content": 7}]}', "content of a message is 7"),
        (
            '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
            "part of a message is 'image_url'",
        ),
        ('{"messages": [{"role": "user", "content": "x"}], "max_tokens": -1}', "-1 tokens"),
        ('{"messages": [{"role": "user", "content": "x"}], "time": "noon"}', "isoformat"),
        ('{"messages": [{"role": "user", "content": "x"}], "time": -5}', "no time"),
        ('[{"messages"', "not a whole JSON list"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(line)
    with pytest.raises((DamagedLineError, TraceError), match=reason):
        read_trace(path, "openai")


def test_a_tokenizer_that_says_nothing_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
    )
    with pytest.raises(TraceError, match="format azure holds no text"):
        read_trace(azure, tokenizer=tokenizer)
    tokenizer.write_text("")
    with pytest.raises(TraceError, match="an empty file"):
        read_trace(write(tmp_path, LINES), tokenizer=tokenizer)


def test_without_the_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(TraceError, match="pip install tokenizers"):
        read_trace(write(tmp_path, LINES), tokenizer=tmp_path)


def test_the_replay_takes_a_log(tmp_path: Path, tokenizer: Path) -> None:
    path = write(tmp_path, LINES)
    options = ["--num-blocks", "unbounded", "--tokenizer", str(tokenizer)]
    result = CliRunner().invoke(app, ["replay", str(path), *options])
    assert result.exit_code == 0, result.output
    refused = CliRunner().invoke(app, ["replay", "--tokenizer", str(tokenizer)])
    assert refused.exit_code == 2
    assert "without TRACE" in refused.output
