"""One frame of the view: lines of text, as wide as the terminal."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from hybrid_blocks import metrics as figures
from hybrid_blocks.metrics import OFFLOAD_COUNTERS, OFFLOAD_GAUGES, SHADOW_COUNTERS, SHADOW_GAUGES
from hybrid_blocks.terminal import plain
from hybrid_blocks.tools.top.read import Change, Reading
from hybrid_blocks.units import human

_FULL, _PARTS = "█", " ▏▎▍▌▋▊▉"
_INDENT = "  "
_GAP = "   "
_NAME, _FIGURE, _SHARE = 18, 11, 5
"""Columns of a name, of a figure with its unit, and of a share."""
_LEAST_BAR = 4
_NARROW = 40
"""Columns below which bars and shares leave their room to names and figures."""

_HEADING, _BAR, _FAINT, _WARNING = "bold", "cyan", "dim", "bold red"


@dataclass(frozen=True)
class View:
    """The last two readings of an engine, and why there is no newer one."""

    url: str
    before: Reading | None = None
    now: Reading | None = None
    problem: str | None = None


def frame(view: View, width: int) -> Text:
    """Return a frame of lines that are cut at ``width``."""
    lines = [Text(plain(view.url), style=_HEADING)]
    if view.problem:
        lines.append(Text(plain(view.problem), style=_WARNING))
    if view.now is not None:
        lines += _lines(view.now, Change(view.before, view.now), width)
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n", no_wrap=True, end="").join(lines)


def _lines(now: Reading, change: Change, width: int) -> Iterator[Text]:
    if now.of(SHADOW_COUNTERS["requests"].name):
        yield from _shadow(now, change, width)
        return
    yield from _engines(now)
    yield from _requests(now, change, width)
    if slabs := now.by("owner", figures.SLABS.name):
        yield Text(f"slabs {_number(sum(slabs.values()))}", style=_HEADING)
        yield from _bars(slabs, width)
        for pool in now.by("pool", figures.BLOCKS.name):
            states = now.by("state", figures.BLOCKS.name, pool=pool)
            counts = [f"{state} {_number(count)}" for state, count in states.items()]
            yield from _row(f"{pool} blocks", counts, width)
        yield from _reserved(now, width)
    elif blocks := now.by("state", figures.BLOCKS.name):
        yield Text(f"blocks {_number(sum(blocks.values()))}", style=_HEADING)
        yield from _bars(blocks, width)
    if hits := change.by("ended_by", figures.HITS.name):
        total = _number(sum(hits.values()))
        yield Text(f"hits {total}{change.unit} by their end", style=_HEADING)
        yield from _bars(hits, width, change.unit)
        yield from _checkpoints(change, width)
    if now.of(OFFLOAD_GAUGES["host_held_bytes"].name):
        yield from _offload(now, change, width)


def _engines(now: Reading) -> Iterator[Text]:
    infos = now.of(figures.INFO.name)
    if not infos:
        yield Text("hybrid_blocks is not active in this engine", style=_WARNING)
    for info in infos:
        labels = info.labels
        reason = f" ({labels['reason']})" if labels.get("reason") else ""
        yield Text(
            f"{labels.get('model_name')} · engine {labels.get('engine')} · "
            f"level {labels.get('level')}{reason} · {labels.get('version')} in "
            f"vLLM {labels.get('vllm_version')}",
            style=_FAINT,
        )


def _requests(now: Reading, change: Change, width: int) -> Iterator[Text]:
    def counted(name: str) -> float:
        return change.counted(f"vllm:{name}_total")

    yield Text("requests", style=_HEADING)
    running, waiting = (now.total(f"vllm:num_requests_{one}") for one in ("running", "waiting"))
    preempted = f"preempted {_number(counted('num_preemptions'))}{change.unit}"
    yield from _row(
        "running", [f"{_number(running):>6}", f"waiting {_number(waiting)}", preempted], width
    )
    asked, found = counted("prefix_cache_queries"), counted("prefix_cache_hits")
    share = f"{found / asked:.0%} of prompt tokens" if asked else "no prompt"
    generated = f"generated {_number(counted('generation_tokens'))} tokens{change.unit}"
    yield from _row("found", [share, generated], width)


def _shadow(now: Reading, change: Change, width: int) -> Iterator[Text]:
    def counted(name: str, **labels: str) -> float:
        return change.counted(SHADOW_COUNTERS[name].name, **labels)

    yield Text("shadow", style=_HEADING)
    behind = max((it.value for it in now.of(SHADOW_GAUGES["behind_seconds"].name)), default=0.0)
    requests = [f"{_number(counted('requests'))}{change.unit}", f"{_number(behind)} s behind"]
    left_out = change.by("reason", SHADOW_COUNTERS["left_out"].name)
    reasons = [f"{reason} {_number(num)}{change.unit}" for reason, num in left_out.items() if num]
    yield from _row("requests", [*requests, *reasons], width)
    prompt = counted("prompt_tokens")
    differs = f"differs {counted('differing_tokens') / prompt:.1%}" if prompt else "no prompt"
    yield from _row("own replay", [differs], width)
    running = now.by("replay", SHADOW_GAUGES["running"].name)
    for replay, found in change.by("replay", SHADOW_COUNTERS["found_tokens"].name).items():
        parts = [f"found {found / prompt:.1%}" if prompt else "found -"]
        if num := counted("first_tokens", replay=replay):
            parts.append(f"first token {counted('first_token_seconds', replay=replay) / num:.2f} s")
        if replay in running:
            preempted = _number(counted("preemptions", replay=replay)) + change.unit
            parts += [f"at once {_number(running[replay])}", f"preempted {preempted}"]
        yield from _row(replay, parts, width)


def _reserved(now: Reading, width: int) -> Iterator[Text]:
    parts = now.by("part", figures.RESERVED.name)
    total = sum(parts.values())
    if total:
        shares = [f"{part} {num_bytes / total:.1%}" for part, num_bytes in parts.items()]
        held = (share for share in shares if not share.endswith(" 0.0%"))
        yield from _row("reserved", [human(int(total)), *held], width)


def _checkpoints(change: Change, width: int) -> Iterator[Text]:
    yield Text("checkpoints", style=_HEADING)
    for name, label, metric in (
        ("written", "place", figures.CHECKPOINTS_WRITTEN.name),
        ("dropped", "reason", figures.CHECKPOINTS_DROPPED.name),
    ):
        values = change.by(label, metric)
        total = f"{_number(sum(values.values())) + change.unit:>8}"
        named = [
            f"{kind.replace('_', ' ')} {_number(value)}" for kind, value in values.items() if value
        ]
        yield from _row(name, [total, *named], width)
    used = _number(change.counted(figures.FORKS.name)) + change.unit
    yield from _row("used", [f"{used:>8}"], width)


def _offload(now: Reading, change: Change, width: int) -> Iterator[Text]:
    def held(name: str) -> str:
        return human(int(now.total(OFFLOAD_GAUGES[name].name)))

    def moved(name: str) -> str:
        return f"{_number(change.counted(OFFLOAD_COUNTERS[name].name))}{change.unit}"

    def count(name: str) -> str:
        return _number(now.total(OFFLOAD_GAUGES[name].name))

    def refuses(tier: str) -> list[str]:
        return ["refuses"] if now.total(OFFLOAD_GAUGES[f"{tier}_refused"].name) else []

    yield Text("offload", style=_HEADING)
    moves = (("in", "stored_chunks"), ("out", "loaded_chunks"), ("evicted", "evicted_chunks"))
    moved_chunks = [f"{word} {moved(name)}" for word, name in moves]
    yield from _row("host memory", [held("host_held_bytes"), *moved_chunks], width)
    disk = [held("disk_bytes"), f"{count('disk_chunks')} chunks"]
    yield from _row("disk", [*disk, *refuses("disk")], width)
    objects = [f"{count('object_chunks')} chunks", f"{count('object_uploads')} to upload"]
    yield from _row("objects", [*objects, *refuses("object")], width)


def _row(name: str, parts: Sequence[str], width: int) -> Iterator[Text]:
    """Yield a name and what belongs to it, on further lines where the terminal is narrow."""
    line = f"{_INDENT}{name:<{_name_width(width)}}"
    margin = " " * len(line) if width >= _NARROW else _INDENT * 2
    for number, part in enumerate(parts):
        if number and len(line) + len(_GAP) + len(part) > width:
            yield Text(line)
            line = margin + part.strip()
        else:
            line += (_GAP if number else "") + part
    yield Text(line)


def _name_width(width: int) -> int:
    return _NAME if width >= _NARROW else max(width - len(_INDENT) - _FIGURE, 1)


def _bars(values: Mapping[str, float], width: int, unit: str = "") -> Iterator[Text]:
    """Yield each value with a bar of its share."""
    total = sum(values.values())
    names = _name_width(width)
    room = width - len(_INDENT) - names - _FIGURE - _SHARE
    for name, value in values.items():
        share = value / total if total else 0.0
        line = Text(f"{_INDENT}{name.replace('_', ' '):<{names}.{names}}")
        if room >= _LEAST_BAR:
            line.append(f"{_bar(share, room):<{room}}", style=_BAR)
        line.append(f"{_number(value) + unit:>{_FIGURE}}")
        if width >= _NARROW:
            line.append(f"{share:>{_SHARE}.0%}")
        yield line


def _bar(share: float, width: int) -> str:
    whole, part = divmod(round(share * width * 8), 8)
    return (_FULL * whole + _PARTS[part].strip())[:width]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"
