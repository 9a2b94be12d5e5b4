"""A line of a shadow each minute, and its figures on ``/metrics``."""

import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from hybrid_blocks.metrics import SHADOW_COUNTERS, SHADOW_GAUGES, Sample
from hybrid_blocks.tools.shadow.follow import Follower
from hybrid_blocks.tools.shadow.shadow import ENGINE, Counts, Shadow

_POLL_S: Final = 0.5
_MINUTE_S: Final = 60.0
_MOST_GROWING: Final = 3
"""Minutes in a row in which more stays unread before lines are skipped."""


def run(
    shadow: Shadow,
    follower: Follower,
    page: "Page | None",
    labels: Mapping[str, str],
    *,
    once: bool,
) -> None:
    """Follow a record for ever, or ``once`` to its end."""
    before, minute = shadow.counts.copy(), time.monotonic() + _MINUTE_S
    unread, num_growing = 0, 0
    while True:
        piece = follower.poll(skips=num_growing >= _MOST_GROWING)
        for remark in piece.remarks:
            shadow.say(remark)
        if piece.begins:
            shadow.begin()
            shadow.say(f"follows {piece.begins}")
        shadow.take(piece.records)
        if piece.is_end:
            num_growing = 0
            shadow.advance(float("inf")) if once else shadow.wait()
        is_over = once and piece.is_end
        if is_over or time.monotonic() >= minute:
            minute = time.monotonic() + _MINUTE_S
            shadow.counts["left_out", "skipped"] = follower.num_skipped
            peaks = shadow.peaks()
            shadow.say(_line(shadow, shadow.counts - before, peaks))
            if page is not None:
                page.text = _text(_samples(shadow, peaks), labels)
            before = shadow.counts.copy()
            shadow.fit()
            num_growing = num_growing + 1 if follower.unread_bytes > unread else 0
            unread = follower.unread_bytes
            if num_growing == _MOST_GROWING:
                shadow.say("the replay is slower than the record; skips to its end")
        if is_over:
            return
        if piece.is_end:
            time.sleep(_POLL_S)


def _line(shadow: Shadow, counts: Counts, peaks: Mapping[str, int]) -> str:
    """Return what was counted in a minute."""
    prompt, compared = counts["prompt_tokens", ""], counts["compared", ""]
    names = (ENGINE, *peaks)

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
        "found": [f"{name} {share(counts['found_tokens', name])}" for name in names],
        f"{shadow.own} differs from engine": f"{share(counts['differing_tokens', ''])} "
        f"({counts['differing', '']:,} of {compared:,} requests)",
        "at once": [f"{name} {num:,}" for name, num in peaks.items()],
        "preempted": [f"{name} {counts['preemptions', name]:,}" for name in peaks],
        "first token": [f"{name} {first_token(name)}" for name in names],
        "behind": f"{shadow.behind:,.0f} s",
    }
    return "; ".join(
        f"{title}: {it if isinstance(it, str) else ', '.join(it)}" for title, it in shown.items()
    )


def _samples(shadow: Shadow, peaks: Mapping[str, int]) -> Iterator[Sample]:
    for (name, label), value in sorted(shadow.counts.items()):
        if (figure := SHADOW_COUNTERS.get(name)) is not None:
            yield figure.sample(value, **dict.fromkeys(figure.labels, label))
    for replay, num in peaks.items():
        yield SHADOW_GAUGES["running"].sample(num, replay=replay)
    yield SHADOW_GAUGES["behind_seconds"].sample(shadow.behind)


def _text(samples: Iterator[Sample], labels: Mapping[str, str]) -> str:
    """Return samples as Prometheus reads them, each with ``labels`` too."""
    lines, said = [], ""
    for it in samples:
        name = it.family + ("_total" if it.kind == "counter" else "")
        if name != said:
            lines += [f"# HELP {name} {it.documentation}", f"# TYPE {name} {it.kind}"]
            said = name
        inside = ",".join(
            f'{key}="{_escaped(value)}"' for key, value in {**labels, **it.labels}.items()
        )
        lines.append(f"{name}{{{inside}}} {it.value}")
    return "\n".join([*lines, ""])


def _escaped(label: str) -> str:
    """Escape a label's value as Prometheus's text format asks."""
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Page(ThreadingHTTPServer):
    """Shows a text on ``/metrics`` of a port, in a thread that mostly sleeps.

    Attributes:
        text: the figures of the last minute.
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
