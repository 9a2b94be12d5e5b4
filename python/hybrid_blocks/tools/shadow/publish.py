"""A line of a shadow each minute, and its figures on ``/metrics``."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from hybrid_blocks.metrics import SHADOW_COUNTERS, SHADOW_GAUGES, Sample
from hybrid_blocks.recording.record_file import engines_of, of_engine
from hybrid_blocks.tools.replay import ReplayError
from hybrid_blocks.tools.shadow.follow import Follower
from hybrid_blocks.tools.shadow.shadow import ENGINE, Counts, Shadow

_POLL_S: Final = 0.5
_MINUTE_S: Final = 60.0
_MOST_GROWING: Final = 3
"""Minutes in a row in which more stays unread before lines are skipped."""


class Followed:
    """The record of one engine, and its shadow.

    Attributes:
        shadow: with all counts.
        peaks: the most requests at once in each replay, in the last minute.
    """

    def __init__(self, shadow: Shadow, follower: Follower) -> None:
        self.shadow, self.peaks = shadow, dict[str, int]()
        self._follower = follower
        self._before, self._unread, self._num_growing = shadow.counts.copy(), 0, 0
        self._is_over = False

    def poll(self, *, once: bool) -> bool:
        """Take the next piece; return whether there is no more now, ``once`` for ever."""
        if self._is_over:
            return True
        shadow, piece = self.shadow, self._follower.poll(skips=self._num_growing >= _MOST_GROWING)
        for remark in piece.remarks:
            shadow.say(remark)
        if piece.begins:
            shadow.begin()
            shadow.say(f"follows {piece.begins}")
        shadow.take(piece.records)
        if piece.is_end:
            if once and self._follower.num_damaged and not self._follower.num_requests:
                raise ReplayError(
                    "no line holds a request; HYBRID_BLOCKS_RECORD of an engine writes lines with "
                    "hybrid_blocks_request, arrival, block_tokens, prompt_tokens, output_tokens "
                    "and blocks"
                )
            self._num_growing, self._is_over = 0, once
            shadow.advance(float("inf")) if once else shadow.wait()
        shadow.counts["left_out", "skipped"] = self._follower.num_skipped
        return piece.is_end

    def end_minute(self) -> Counts:
        """Return the counts of a minute that is over."""
        shadow, follower = self.shadow, self._follower
        counts, self._before = shadow.counts - self._before, shadow.counts.copy()
        self.peaks = shadow.peaks()
        shadow.fit()
        self._num_growing = self._num_growing + 1 if follower.unread_bytes > self._unread else 0
        self._unread = follower.unread_bytes
        if self._num_growing == _MOST_GROWING:
            shadow.say("the replay is slower than the record; skips to its end")
        return counts


def run(
    path: Path,
    make: Callable[[int], Shadow],
    page: "Page | None" = None,
    labels: Mapping[str, str] | None = None,
    *,
    once: bool,
) -> dict[int, Followed]:
    """Follow the records of all engines that share a path for ever, or ``once`` to their ends.

    ``make`` returns the shadow of an engine, by its number.
    """
    engines: dict[int, Followed] = {}
    look = time.monotonic()
    minute = look + _MINUTE_S
    with ExitStack() as opened:
        while True:
            is_look = time.monotonic() >= look
            if is_look:
                look = time.monotonic() + _POLL_S
                for number in sorted(engines_of(path) - engines.keys()):
                    follower = Follower(of_engine(path, number))
                    opened.callback(follower.close)
                    engines[number] = Followed(make(number), follower)
            is_end = not [it for it in engines.values() if not it.poll(once=once)]
            is_over = once and is_end
            if is_over or time.monotonic() >= minute:
                minute = time.monotonic() + _MINUTE_S
                counts = sum((it.end_minute() for it in engines.values()), Counts())
                engines[0].shadow.say(_line(counts, list(engines.values())))
            if page is not None and (is_look or is_over):
                page.text = _text(engines, labels or {})
            if is_over:
                return engines
            if is_end:
                time.sleep(_POLL_S)


def _line(counts: Counts, engines: list[Followed]) -> str:
    """Return what was counted in a minute, of all engines."""
    prompt, compared = counts["prompt_tokens", ""], counts["compared", ""]
    names = dict.fromkeys(name for it in engines for name in it.peaks)
    peaks = {name: sum(it.peaks.get(name, 0) for it in engines) for name in names}
    own = engines[0].shadow.own

    def share(num: float) -> str:
        return f"{num / prompt:.1%}" if prompt else "-"

    def first_token(name: str) -> str:
        num = counts["first_tokens", name]
        return f"{counts['first_token_seconds', name] / num:.3g} s" if num else "-"

    left_out = (
        f", {num:,} {why}" for (name, why), num in counts.items() if name == "left_out" and num
    )
    shown = {
        "requests": f"{counts['requests', '']:,}{''.join(left_out)}",
        "found": [f"{name} {share(counts['found_tokens', name])}" for name in (ENGINE, *peaks)],
        f"{own} differs from engine": f"{share(counts['differing_tokens', ''])} "
        f"({counts['differing', '']:,} of {compared:,} requests)",
        "at once": [f"{name} {num:,}" for name, num in peaks.items()],
        "preempted": [f"{name} {counts['preemptions', name]:,}" for name in peaks],
        "first token": [f"{name} {first_token(name)}" for name in (ENGINE, *peaks)],
        "behind": f"{max(it.shadow.behind for it in engines):,.0f} s",
    }
    return "; ".join(
        f"{title}: {it if isinstance(it, str) else ', '.join(it)}" for title, it in shown.items()
    )


def _samples(engine: Followed) -> Iterator[Sample]:
    for (name, label), value in sorted(engine.shadow.counts.items()):
        if (figure := SHADOW_COUNTERS.get(name)) is not None:
            yield figure.sample(value, **dict.fromkeys(figure.labels, label))
    for replay, num in engine.peaks.items():
        yield SHADOW_GAUGES["running"].sample(num, replay=replay)
    yield SHADOW_GAUGES["behind_seconds"].sample(engine.shadow.behind)


def _text(engines: Mapping[int, Followed], labels: Mapping[str, str]) -> str:
    """Return the figures of all engines as Prometheus reads them, with ``labels`` too."""
    families: dict[str, list[str]] = {}
    for number, engine in engines.items():
        for it in _samples(engine):
            name = it.family + ("_total" if it.kind == "counter" else "")
            about = [f"# HELP {name} {it.documentation}", f"# TYPE {name} {it.kind}"]
            held = {**labels, "engine": str(number), **it.labels}
            inside = ",".join(f'{key}="{_escaped(value)}"' for key, value in held.items())
            families.setdefault(name, about).append(f"{name}{{{inside}}} {it.value}")
    return "\n".join([*(line for lines in families.values() for line in lines), ""])


def _escaped(label: str) -> str:
    """Escape a label's value as Prometheus's text format asks."""
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Page(ThreadingHTTPServer):
    """Shows a text on ``/metrics`` of a port, in a thread that mostly sleeps.

    Attributes:
        text: the figures that it shows.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        self.text = ""
        super().__init__((host, port), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: Page

    def do_GET(self) -> None:
        """Answer with the figures."""
        body = self.server.text.encode()
        self.send_response(200 if self.path == "/metrics" else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""
