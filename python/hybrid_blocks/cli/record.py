"""``hybrid-blocks record``: the KV events of an engine, without tokens."""

import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from hybrid_blocks.cli.output import warn
from hybrid_blocks.cli.values import finite
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.terminal import plain
from hybrid_blocks.trace.kv_events.follow import Follower
from hybrid_blocks.trace.kv_events.recorder import EventRecorder
from hybrid_blocks.trace.kv_events.subscriber import ANSWERS_WITHIN_S, Subscriber
from hybrid_blocks.trace.record_file import split
from hybrid_blocks.units import human, parse_memory

_ADDRESS: Final = re.compile(r"(tcp|ipc)://[^\s*]+")
_LOOKED_EVERY_S: Final = 0.5


def record_command(
    address: Annotated[
        str, typer.Argument(help="Endpoint of the engine's --kv-events-config: tcp://HOST:5557.")
    ],
    file: Annotated[Path, typer.Argument(help="File to write: .jsonl, .jsonl.gz or .jsonl.zst.")],
    *,
    replay: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Its replay_endpoint, for messages that were lost."),
    ] = None,
    topic: Annotated[str, typer.Option(help="Its topic.")] = "",
    seconds: Annotated[
        float | None,
        typer.Option(min=0.1, callback=finite, help="End after this time; else at Ctrl-C."),
    ] = None,
    rotate: Annotated[
        str, typer.Option(metavar="SIZE", help="Begin another file when one has this size.")
    ] = "1GiB",
    most: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="End when all files have this size; else at Ctrl-C."),
    ] = None,
) -> None:
    """Record what an engine stores and evicts, without its tokens; replay reads the file."""
    for name, one in (("ADDRESS", address), ("--replay", replay)):
        if one is not None and _ADDRESS.fullmatch(one) is None:
            raise InvalidArgumentError(f"{name} {one}: write tcp://HOST:PORT or ipc://PATH")
    split(file)
    largest_file = parse_memory(rotate)
    largest = None if most is None else parse_memory(most)
    with Subscriber(address, replay, topic) as engine:
        recorder = EventRecorder(file, largest_file)
        follower = Follower(recorder, engine.again if replay else None)
        ends = None if seconds is None else time.monotonic() + seconds
        try:
            with _stopped_as_by_ctrl_c():
                typer.echo(
                    plain(f"recording {address} to {recorder.path}; Ctrl-C ends it"), err=True
                )
                follower.begin()
                _follow(engine, follower, recorder, ends, largest)
        except KeyboardInterrupt:
            pass
        finally:
            recorder.close()
        unanswered = None if engine.has_met else engine.address
    _say(recorder, follower, unanswered, has_replay=replay is not None)


def _follow(
    engine: Subscriber,
    follower: Follower,
    recorder: EventRecorder,
    ends: float | None,
    largest: int | None,
) -> None:
    late_at = time.monotonic() + ANSWERS_WITHIN_S
    while ends is None or time.monotonic() < ends:
        if time.monotonic() > late_at:
            late_at = float("inf")  # said once
            if not engine.has_met:
                warn(
                    f"no publisher answers at {engine.address} yet; recording begins when one does"
                )
        left = _LOOKED_EVERY_S if ends is None else min(_LOOKED_EVERY_S, ends - time.monotonic())
        message = engine.wait(max(left, 0.0))
        if message is None:
            recorder.flush()
            continue
        follower.take(*message)
        if largest is not None and recorder.num_bytes > largest:
            warn(f"{human(recorder.num_bytes)} are written, and --most is {human(largest)}")
            return


@contextmanager
def _stopped_as_by_ctrl_c() -> Iterator[None]:
    """Let a container's stop close the file too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(
    recorder: EventRecorder, follower: Follower, unanswered: str | None, *, has_replay: bool
) -> None:
    counts = f"{recorder.num_batches:,} messages, {recorder.num_stored:,} blocks stored"
    typer.echo(plain(f"{recorder.path}: {counts}"))
    if recorder.num_lost:
        why = (
            "the engine kept them no longer" if has_replay else "--replay asks the engine for them"
        )
        warn(f"{recorder.num_lost:,} messages are missing, those before the start included; {why}")
    if follower.num_restarts:
        warn(f"the engine began again {follower.num_restarts:,} times")
    if follower.num_damaged:
        warn(f"{follower.num_damaged:,} messages could not be read: {follower.last_error}")
    if recorder.num_elsewhere:
        warn(f"{recorder.num_elsewhere:,} events of host memory or storage are left out")
    if recorder.num_unknown:
        warn(f"{recorder.num_unknown:,} events are of a type that is not known")
    if unanswered is not None:
        warn(f"no publisher answered at {unanswered}: is its endpoint in --kv-events-config?")
    elif not recorder.num_stored:
        warn(
            "no block was stored: start vLLM with --kv-events-config "
            """'{"enable_kv_cache_events": true, "publisher": "zmq"}' and with prefix caching"""
        )
