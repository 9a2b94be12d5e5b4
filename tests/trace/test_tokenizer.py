"""Text of conversations, with a tokenizer and without one."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hybrid_blocks.tools.cli import app
from hybrid_blocks.tools.trace import TraceError, read_trace
from typer.testing import CliRunner

TALK = {"conversations": [{"from": "human", "value": "a b a"}, {"from": "gpt", "value": "a b"}]}
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"


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


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps(TALK))
    return path


def test_tokens_are_those_of_the_tokenizer(talk: Path, tokenizer: Path) -> None:
    for given in (tokenizer, tokenizer.parent):
        trace = read_trace(talk, tokenizer=given)
        assert trace.token_ids(0).tolist() == [0, 1, 0, 0, 1]
        assert (trace.prompt_tokens[0], trace.output_tokens[0]) == (3, 2)


def test_a_tokenizer_that_says_nothing_is_refused(talk: Path, tokenizer: Path) -> None:
    azure = talk.with_name("azure.csv")
    azure.write_text(AZURE)
    with pytest.raises(TraceError, match="format azure holds no text"):
        read_trace(azure, tokenizer=tokenizer)
    tokenizer.write_text("")
    with pytest.raises(TraceError, match="an empty file"):
        read_trace(talk, tokenizer=tokenizer)


def test_without_the_package_the_error_says_what_to_install(
    talk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(TraceError, match="pip install tokenizers"):
        read_trace(talk, tokenizer=talk.parent)


def test_the_replay_takes_a_tokenizer(talk: Path, tokenizer: Path) -> None:
    options = ["--num-blocks", "unbounded", "--tokenizer", str(tokenizer)]
    result = CliRunner().invoke(app, ["replay", str(talk), *options])
    assert result.exit_code == 0, result.output
    refused = CliRunner().invoke(app, ["replay", "--tokenizer", str(tokenizer)])
    assert refused.exit_code == 2
    assert "without TRACE" in refused.output
