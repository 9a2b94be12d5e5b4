"""The lines in which vLLM reports its options and its cache, as facts of one start."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_WORDS: Final = re.compile(
    r"ersion|args|engine|token|sync|KV|block|amba|Auto-fit|model|Prefill|prefill|hybrid"
)
"""Every known line contains one of these words, so that other lines cost little."""
_ENDS: Final = frozenset({"memory", "usable", "tokens"})
"""Facts with which a start ends. The next arguments begin another one."""
_LONGEST: Final = 200_000
"""Characters of a line that are looked at."""
_MOST_VALUES: Final = 4096
"""Values of a fact that are kept; an engine has fewer workers."""

_N: Final = r"\d{1,12}"
_NUMBER: Final = r"\d{1,12}(?:\.\d{1,12})?"
_THOUSANDS: Final = r"\d{1,3}(?:,\d{3}){0,3}|\d{1,12}"

# A repetition has a bound unless it ends its pattern, so that no line takes more than linear time.
PATTERNS: Final = tuple(
    map(
        re.compile,
        (
            r"(?:vLLM (?:API )?server version |LLM engine \(v|[█▀] {2}version {1,40}|vLLM version )"
            r"v?(?P<version>\d[\w.+-]{0,80})",
            r"[█▀] {2}model {1,40}(?P<banner_model>\S+)",
            r"non-default args: (?P<arguments>\{.*)",
            r"LLM engine \(v[^)]{0,80}\) with config: (?P<engine>.*)",
            rf"Chunked prefill is enabled with max_num_batched_tokens=(?P<batched_tokens>{_N})\b",
            r"Async(?:hronous)? scheduling (?:is|will be) (?P<asynchronous>enabled|disabled)",
            rf"Available KV cache memory: (?P<memory>{_NUMBER}) GiB",
            rf"\((?P<needed>{_NUMBER}) GiB KV cache is needed, which is larger than the available "
            rf"KV cache memory \((?P<usable>{_NUMBER}) GiB\)",
            rf"estimated maximum model length is (?P<longest>{_N})\b",
            rf"KV cache size: (?P<tokens>{_THOUSANDS}) tokens",
            rf"Maximum concurrency for (?P<length>{_THOUSANDS}) tokens per request: "
            rf"(?P<concurrency>{_NUMBER})x",
            rf"(?:# \w{{1,9}} blocks|num_gpu_blocks is): (?P<blocks>{_N})\b",
            rf"available Mamba cache blocks \((?P<blocks>{_N})\)",
            rf"Overriding num_gpu_blocks={_N} with \w{{1,40}}=(?P<blocks>{_N})\b",
            rf"Setting attention block size to (?P<block>{_N}) tokens",
            r"Using (?P<gdn_kernel>[\w/ ]{1,20}) GDN prefill kernel",
            r"Mamba cache mode is set to '(?P<mode>\w{1,20})'",
            rf"Auto-fit max_model_len: (?:reduced from {_N} to|full model context length) "
            rf"(?P<fitted>{_N})\b",
            rf"hybrid_blocks: {_NUMBER} \w{{1,9}} hold {_NUMBER}x requests of "
            rf"(?P<length>{_THOUSANDS}) tokens in (?P<slabs>{_THOUSANDS}) slabs of ",
        ),
    )
)
"""Each kind of line that is read; the names of its parts are those of `Logged`'s facts."""


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """A log: values of each fact in order of the lines, and how many lines there are."""

    facts: dict[str, list[str]]
    num_lines: int
    num_read: int

    def last(self, fact: str) -> str | None:
        """Return what the log says last, None if nothing."""
        return next(reversed(self.facts.get(fact, ())), None)

    def numbers(self, fact: str) -> list[float]:
        """Return all values of a fact as numbers."""
        return [float(text.replace(",", "")) for text in self.facts.get(fact, ())]


def read_lines(lines: Iterable[str]) -> Logged:
    """Read the last start of a log that has figures; lines that are not known are counted."""
    before: dict[str, list[str]] = {}
    now: dict[str, list[str]] = {}
    num_lines = num_read = 0
    for line in lines:
        text = _COLOUR.sub("", line[:_LONGEST]).rstrip("\r\n")
        num_lines += bool(text.strip())
        found = dict(_facts(text)) if _WORDS.search(text) else {}
        num_read += bool(found)
        if "arguments" in found and not _ENDS.isdisjoint(now):
            before, now = now, {}
        for fact, value in found.items():
            values = now.setdefault(fact, [])
            values.append(value)
            del values[:-_MOST_VALUES]
    has_figures = not _ENDS.isdisjoint(now) or not before
    return Logged(facts=now if has_figures else before, num_lines=num_lines, num_read=num_read)


def _facts(line: str) -> Iterator[tuple[str, str]]:
    for pattern in PATTERNS:
        if match := pattern.search(line):
            yield from ((name, text) for name, text in match.groupdict().items() if text)
