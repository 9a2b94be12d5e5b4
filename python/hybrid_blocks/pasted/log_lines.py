"""What vLLM says of its caches, line by line."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from hybrid_blocks.pasted.log_troubles import trouble

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_WORDS: Final = re.compile(
    r"ersion|args|engine|token|sync|KV|block|adding|amba|Auto-fit|reqs|reempt|oading|available|"
    r"seq len|requests|model|graph|Decode|Prefill|sliding|cach|ybrid|memory"
)
"""What every line that is known contains one of, so that others cost little."""
_BEGINS: Final = frozenset({"arguments"})
_ENDS: Final = frozenset({"memory", "tokens", "total_tokens"})
"""Facts with which a start begins and ends: a log is read as the last start that came so far."""
_LONGEST: Final = 200_000
"""Characters of a line that are looked at."""

PATTERNS: Final = {
    "version": re.compile(
        r"(?:vLLM (?:API )?server version |LLM engine \(v|[█▀] {2}version +|vLLM version )"
        r"v?(?P<version>\d[\w.+-]*)"
    ),
    "banner model": re.compile(r"[█▀] {2}model +(?P<banner_model>\S+)"),
    "arguments": re.compile(r"non-default args: (?P<arguments>\{.*)"),
    "engine": re.compile(r"LLM engine \(v[^)]*\) with config: (?P<engine>.*)"),
    "batched tokens": re.compile(
        r"Chunked prefill is enabled with max_num_batched_tokens=(?P<batched_tokens>\d+)"
    ),
    "asynchronous": re.compile(
        r"Async(?:hronous)? scheduling (?:is|will be) (?P<asynchronous>enabled|disabled)"
    ),
    "memory": re.compile(r"Available KV cache memory: (?P<memory>[\d.]+) GiB"),
    "too little memory": re.compile(
        r"larger than the available KV cache memory \((?P<memory>[\d.]+) GiB\)"
    ),
    "reserved": re.compile(r"reserved (?P<reserved>[\d.]+) GiB memory for KV Cache"),
    "in use": re.compile(
        r"--kv-cache-memory=(?P<more_bytes>\d+)`? \([\d.]+ GiB\) to fully utilize gpu memory\. "
        r"Current kv cache memory in use is (?P<in_use>[\d.]+) GiB"
    ),
    "tokens": re.compile(r"KV cache size: (?P<tokens>[\d,]+) tokens"),
    "concurrency": re.compile(
        r"Maximum concurrency for (?P<length>[\d,]+) tokens per request: (?P<concurrency>[\d.]+)x"
    ),
    "blocks": re.compile(r"# \w+ blocks: (?P<blocks>\d+)"),
    "blocks of states": re.compile(r"available Mamba cache blocks \((?P<blocks>\d+)\)"),
    "overridden": re.compile(r"Overriding num_gpu_blocks=\d+ with \w+=(?P<blocks>\d+)"),
    "block": re.compile(r"Setting attention block size to (?P<block>\d+) tokens"),
    "padding": re.compile(r"Padding mamba page size by (?P<padding>[\d.]+)%"),
    "padding layers": re.compile(
        r"Add (?P<padding_layers>\d+) padding layers, may waste at most (?P<wasted>[\d.]+)%"
    ),
    "mode": re.compile(r"Mamba cache mode is set to '(?P<mode>\w+)'"),
    "fitted": re.compile(
        r"Auto-fit max_model_len: (?:reduced from \d+ to|full model context length) (?P<fitted>\d+)"
    ),
    "step": re.compile(
        r"Running: (?P<running>\d+) reqs, Waiting: (?P<waiting>\d+) reqs.*KV cache usage: "
        r"(?P<usage>[\d.]+)%"
    ),
    "hits": re.compile(r"Prefix cache hit rate: (?P<hits>[\d.]+)%"),
    "preemptions": re.compile(r"\bPreemptions: (?P<preemptions>\d+)"),
    "level natural": re.compile(
        r"hybrid_blocks: [\d.]+ \w+ hold (?P<natural_concurrency>[\d.]+)x requests of (?P<length>"
        r"[\d,]+) tokens in (?P<slabs>[\d,]+) slabs of (?P<slab>[\d.]+ \w+); vLLM would log "
        r"(?:(?P<vllm_concurrency>[\d.]+)x in (?P<vllm_blocks>[\d,]+) blocks)?"
    ),
    "model loading": re.compile(r"Model loading took (?P<weights>[\d.]+) Gi?B"),
}
"""Each kind of line that is read; the names of its parts are those of `Logged`'s facts."""


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """A log: every value of each fact in order of the lines, and how many lines there are."""

    facts: dict[str, list[str]]
    troubles: tuple[tuple[str, str], ...]
    num_lines: int
    num_read: int

    def first(self, fact: str) -> str | None:
        """Return what the log says first, None if nothing."""
        return next(iter(self.facts.get(fact, ())), None)

    def last(self, fact: str) -> str | None:
        """Return what the log says last, None if nothing."""
        return next(reversed(self.facts.get(fact, ())), None)

    def numbers(self, fact: str) -> list[float]:
        """Return all values of a fact as numbers."""
        return [float(text.replace(",", "")) for text in self.facts.get(fact, ())]


def read_lines(lines: Iterable[str]) -> Logged:
    """Read the last start of a log; lines that are not known are counted."""
    facts: dict[str, list[str]] = {}
    troubles: dict[tuple[str, str], None] = {}
    before: dict[str, list[str]] = {}
    num_lines = num_read = 0
    for line in _whole(lines):
        num_lines += bool(line.strip())
        if _WORDS.search(line) is None:
            continue
        found = dict(_facts(line))
        if not _BEGINS.isdisjoint(found) and not _ENDS.isdisjoint(facts):
            before, facts, troubles = facts, {}, {}
        for fact, text in found.items():
            facts.setdefault(fact, []).append(text)
        told = trouble(line)
        if told is not None:
            troubles[told] = None
        num_read += bool(found) or told is not None
    facts = before if before and _ENDS.isdisjoint(facts) else facts
    return Logged(facts=facts, troubles=tuple(troubles), num_lines=num_lines, num_read=num_read)


def _whole(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield _COLOUR.sub("", line[:_LONGEST]).rstrip("\r\n")


def _facts(line: str) -> Iterator[tuple[str, Any]]:
    for pattern in PATTERNS.values():
        if match := pattern.search(line):
            yield from ((name, text) for name, text in match.groupdict().items() if text)
