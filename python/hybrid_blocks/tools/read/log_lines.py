"""The lines in which vLLM reports its caches, and troubles that a log shows."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import Final

import msgspec

_TROUBLES: Final = tomllib.loads((files(__package__) / "log_troubles.toml").read_text())
_COMPILED: Final = tuple((re.compile(pattern), advice) for pattern, advice in _TROUBLES.items())


def trouble(line: str) -> tuple[str, str] | None:
    """Return the words of a line that matter, and what they mean; None for any other line."""
    for pattern, advice in _COMPILED:
        if match := pattern.search(line):
            words = match[0].partition(":")[0].strip() if "reempt" in match[0] else match[0].strip()
            return words, advice.format(*match.groups())
    return None


_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_WORDS: Final = re.compile(
    r"ersion|args|engine|token|sync|KV|block|adding|amba|Auto-fit|reqs|reempt|oading|available|"
    r"seq len|requests|model|graph|Decode|Prefill|prefill|sliding|cach|ybrid|memory"
)
"""Every known line contains one of these words, so that other lines cost little."""
_BEGINS: Final = frozenset({"arguments"})
_ENDS: Final = frozenset({"memory", "usable", "tokens"})
"""Facts with which a start begins and ends: a log is read as the last start that came so far."""
_LATER: Final = frozenset({"usable", "tokens"})
"""Facts that an engine logs behind its memory."""
_LONGEST: Final = 200_000
"""Characters of a line that are looked at."""
_MOST_VALUES: Final = 4096
"""Values of a fact that are kept; an engine has fewer workers."""
_MOST_TROUBLES: Final = 64

_PROCESS: Final = re.compile(
    r"\((?:EngineCore|Worker)(?:_DP(?P<engine>\d{1,5}))?(?:_PP(?P<stage>\d{1,5}))?[_\w]{0,40} pid="
)
"""The process that logs a line, of several engines with parallel data, and of pipeline stages."""
_NAMES: Final = 200
"""Characters of a line in which the name of its process stands."""

_N: Final = r"\d{1,12}"
_NUMBER: Final = r"\d{1,12}(?:\.\d{1,12})?"
_THOUSANDS: Final = r"\d{1,3}(?:,\d{3}){0,3}|\d{1,12}"

# A repetition has a bound unless it ends its pattern, so that no line takes more than linear time.
PATTERNS: Final = {
    "version": re.compile(
        r"(?:vLLM (?:API )?server version |LLM engine \(v|[█▀] {2}version {1,40}|vLLM version )"
        r"v?(?P<version>\d[\w.+-]{0,80})"
    ),
    "banner model": re.compile(r"[█▀] {2}model {1,40}(?P<banner_model>\S+)"),
    "arguments": re.compile(r"non-default args: (?P<arguments>\{.*)"),
    "engine": re.compile(r"LLM engine \(v[^)]{0,80}\) with config: (?P<engine>.*)"),
    "batched tokens": re.compile(
        rf"Chunked prefill is enabled with max_num_batched_tokens=(?P<batched_tokens>{_N})\b"
    ),
    "asynchronous": re.compile(
        r"Async(?:hronous)? scheduling (?:is|will be) (?P<asynchronous>enabled|disabled)"
    ),
    "memory": re.compile(rf"Available KV cache memory: (?P<memory>{_NUMBER}) GiB"),
    "too little memory": re.compile(
        rf"\((?P<needed>{_NUMBER}) GiB KV cache is needed, which is larger than the available KV "
        rf"cache memory \((?P<usable>{_NUMBER}) GiB\)"
    ),
    "longest": re.compile(rf"estimated maximum model length is (?P<longest>{_N})\b"),
    "reserved": re.compile(rf"reserved (?P<reserved>{_NUMBER}) GiB memory for KV Cache"),
    "in use": re.compile(
        rf"--kv-cache-memory=(?P<more_bytes>\d{{1,18}})`? \({_NUMBER} GiB\) to fully utilize gpu "
        rf"memory\. Current kv cache memory in use is (?P<in_use>{_NUMBER}) GiB"
    ),
    "tokens": re.compile(rf"KV cache size: (?P<tokens>{_THOUSANDS}) tokens"),
    "concurrency": re.compile(
        rf"Maximum concurrency for (?P<length>{_THOUSANDS}) tokens per request: "
        rf"(?P<concurrency>{_NUMBER})x"
    ),
    "blocks": re.compile(rf"(?:# \w{{1,9}} blocks|num_gpu_blocks is): (?P<blocks>{_N})\b"),
    "blocks of states": re.compile(rf"available Mamba cache blocks \((?P<blocks>{_N})\)"),
    "overridden": re.compile(rf"Overriding num_gpu_blocks={_N} with \w{{1,40}}=(?P<blocks>{_N})\b"),
    "block": re.compile(rf"Setting attention block size to (?P<block>{_N}) tokens"),
    "padding": re.compile(rf"Padding mamba page size by (?P<padding>{_NUMBER})%"),
    "padding layers": re.compile(
        rf"Add (?P<padding_layers>{_N}) padding layers, may waste at most (?P<wasted>{_NUMBER})%"
    ),
    "prefill kernel": re.compile(r"Using (?P<gdn_kernel>[\w/ ]{1,20}) GDN prefill kernel"),
    "mode": re.compile(r"Mamba cache mode is set to '(?P<mode>\w{1,20})'"),
    "fitted": re.compile(
        rf"Auto-fit max_model_len: (?:reduced from {_N} to|full model context length) "
        rf"(?P<fitted>{_N})\b"
    ),
    "step": re.compile(
        rf"Running: (?P<running>{_N}) reqs, Waiting: (?P<waiting>{_N}) reqs.{{0,400}}?KV cache "
        rf"usage: (?P<usage>{_NUMBER})%"
    ),
    "hits": re.compile(rf"Prefix cache hit rate: (?P<hits>{_NUMBER})%"),
    "preemptions": re.compile(rf"\bPreemptions: (?P<preemptions>{_N})\b"),
    "level natural": re.compile(
        rf"hybrid_blocks: {_NUMBER} \w{{1,9}} hold (?P<natural_concurrency>{_NUMBER})x requests of "
        rf"(?P<length>{_THOUSANDS}) tokens in (?P<slabs>{_THOUSANDS}) slabs of (?P<slab>{_NUMBER} "
        rf"\w{{1,9}}); vLLM would log (?:(?P<vllm_concurrency>{_NUMBER})x in "
        rf"(?P<vllm_blocks>{_THOUSANDS}) blocks)?"
    ),
    "model loading": re.compile(rf"Model loading took (?P<weights>{_NUMBER}) Gi?B"),
}
"""Each kind of line that is read; the names of its parts are those of `Logged`'s facts."""

_MOST_OF: Final = frozenset({"running", "waiting", "usage"})
"""Facts of an engine at work: the most of each counts, and all preemptions together."""


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """A log: values of each fact in order of the lines, and how many lines there are.

    ``engines`` are the numbers of several engines with parallel data, each with its own facts.
    """

    facts: dict[str, list[str]]
    engines: tuple[tuple[int, dict[str, list[str]]], ...]
    troubles: tuple[tuple[str, str], ...]
    num_lines: int
    num_read: int

    def first(self, fact: str) -> str | None:
        """Return what the log says first, None if nothing."""
        return next(iter(self.facts.get(fact, ())), None)

    def last(self, fact: str) -> str | None:
        """Return what the log says last, None if nothing."""
        return next(reversed(self.facts.get(fact, ())), None)

    def of_engines(self) -> "list[tuple[int, Logged]]":
        """Return the log of each of several engines, with what they have in common."""
        own = {fact for _, facts in self.engines for fact in facts}
        common = {fact: values for fact, values in self.facts.items() if fact not in own}
        return [
            (number, msgspec.structs.replace(self, facts=common | facts, engines=()))
            for number, facts in self.engines
        ]

    def with_memory(self, memory_bytes: int) -> "Logged":
        """Return the log of engines that have this memory on each card."""
        kept = {
            fact: values for fact, values in self.facts.items() if not fact.startswith("memory of")
        }
        memory = {"memory": [str(memory_bytes / 2**30)]}
        return msgspec.structs.replace(self, facts=kept | memory, engines=())

    def numbers(self, fact: str) -> list[float]:
        """Return all values of a fact as numbers."""
        return [float(text.replace(",", "")) for text in self.facts.get(fact, ())]


class _Start:
    """Facts of one start of an engine, or of as much of one as the log has."""

    def __init__(self) -> None:
        self.facts: dict[str, list[str]] = {}
        self.engines: dict[int, dict[str, list[str]]] = {}
        self.troubles: dict[tuple[str, str], None] = {}

    def take(self, line: str, found: dict[str, str], advice: tuple[str, str] | None) -> None:
        self._keep(self.facts, found)
        process = _PROCESS.search(line, 0, _NAMES) if found else None
        if process is not None and process["engine"] and len(self.engines) < _MOST_VALUES:
            self._keep(self.engines.setdefault(int(process["engine"]), {}), found)
        if advice is not None and len(self.troubles) < _MOST_TROUBLES:
            self.troubles[advice] = None

    def _keep(self, facts: dict[str, list[str]], found: dict[str, str]) -> None:
        for fact, text in found.items():
            values = facts.setdefault(fact, [])
            if fact in _MOST_OF and values:
                values[0] = max(values[0], text, key=float)
            elif fact == "preemptions" and values:
                values[0] = str(int(values[0]) + int(text))
            elif fact == "hits" or len(values) == _MOST_VALUES:
                values[-1:] = [text]
            else:
                values.append(text)

    def reverse(self) -> None:
        """Put the facts in the order in which they were logged."""
        for facts in (self.facts, *self.engines.values()):
            for values in facts.values():
                values.reverse()

    def has(self, facts: frozenset[str]) -> bool:
        return not facts.isdisjoint(self.facts)


class _Starts:
    """The starts of a log, whose lines may come oldest first or newest first.

    The first start in the file is the newest one if its tokens come before its memory. Options
    behind its figures are its own if no figures follow them. All lines are of one start if only
    one has options and no process logs a figure both before and behind them.
    """

    def __init__(self) -> None:
        self._before, self._now, self._first, self._all = _Start(), _Start(), _Start(), _Start()
        self._is_newest_first = self._is_first_over = False
        self._is_one, self._has_begun = True, False
        self._ends: dict[tuple[str, str], bool] = {}

    def take(self, line: str, found: dict[str, str], advice: tuple[str, str] | None) -> None:
        begins, ends = (not facts.isdisjoint(found) for facts in (_BEGINS, _ENDS))
        if self._is_one:
            self._is_one = not (begins and self._has_begun) and self._is_of_one(line, found)
            self._all.take(line, found, advice)
        self._has_begun = self._has_begun or begins
        if begins and self._now.has(_ENDS):
            self._before, self._now = self._now, _Start()
        self._now.take(line, found, advice)
        if ends and self._first.has(_BEGINS):
            self._is_first_over = True
        is_behind_figures = self._first.has(_LATER) and "memory" not in self._first.facts
        if "memory" in found and is_behind_figures and not self._first.has(_BEGINS):
            self._is_newest_first = True
        if not self._is_first_over:
            self._first.take(line, found, advice)

    def _is_of_one(self, line: str, found: dict[str, str]) -> bool:
        """Note the figures of a process; return whether none was noted before the options."""
        process = _PROCESS.search(line, 0, _NAMES)
        name = process[0] if process else ""
        figures = [(name, fact) for fact in _ENDS.intersection(found)]
        sides = [self._ends.setdefault(it, self._has_begun) for it in figures]
        return all(side == self._has_begun for side in sides) and len(self._ends) < _MOST_VALUES

    def newest(self) -> _Start:
        if self._is_one:
            return self._all
        has_figures_first = self._first.has(_ENDS) and self._first.has(_BEGINS)
        if has_figures_first and (self._is_newest_first or not self._now.has(_ENDS)):
            if self._is_newest_first:
                self._first.reverse()
            return self._first
        return self._now if self._now.has(_ENDS) or not self._before.facts else self._before


def read_lines(lines: Iterable[str]) -> Logged:
    """Read the last start of a log; lines that are not known are counted."""
    starts = _Starts()
    num_lines = num_read = 0
    for line in _whole(lines):
        num_lines += bool(line.strip())
        if _WORDS.search(line) is None:
            continue
        found, advice = dict(_facts(line)), trouble(line)
        if found or advice is not None:
            starts.take(line, found, advice)
            num_read += 1
    newest = starts.newest()
    engines = [it for it in sorted(newest.engines.items()) if not _ENDS.isdisjoint(it[1])]
    return Logged(
        facts=newest.facts,
        engines=tuple(engines) if len(engines) > 1 else (),
        troubles=tuple(newest.troubles),
        num_lines=num_lines,
        num_read=num_read,
    )


def _whole(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield _COLOUR.sub("", line[:_LONGEST]).rstrip("\r\n")


def _facts(line: str) -> Iterator[tuple[str, str]]:
    for pattern in PATTERNS.values():
        if match := pattern.search(line):
            for name, text in match.groupdict().items():
                if text:
                    yield name, text
                if name == "memory" and (process := _PROCESS.search(line, 0, _NAMES)):
                    yield f"memory of stage {int(process['stage'] or 0)}", text
