"""`hybrid-blocks top` against a server that answers as an engine does."""

import fcntl
import itertools
import os
import pty
import select
import socketserver
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from command import answer, refusal
from hybrid_blocks.tools.top.read import GoneError, fetch
from shown import shown

PATIENCE_S = 120.0


class Served(ThreadingHTTPServer):
    """Answers ``/metrics`` with a text, or with an error while there is none."""

    text: str | None = ""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Served

    def do_GET(self) -> None:
        if self.server.text is None or self.path != "/metrics":
            self.send_error(503)
            return
        content = self.server.text.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(("127.0.0.1", 0), _Handler) as server:
        server.text = shown(tmp_path, "natural", offloads=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_one_frame_is_printed_where_no_terminal_is(served: Served) -> None:
    printed = answer("top", served.address, "--once")
    assert f"http://{served.address}/metrics\n" in printed
    assert "slabs 663" in printed
    assert "hits 95 by their end" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_an_engine_that_does_not_answer_is_an_error_with_once(served: Served) -> None:
    served.text = None
    error = refusal("top", served.address, "--once")
    assert f"error: http://{served.address}/metrics: it answers 503" in error


def test_without_a_parser_one_line_says_what_to_install(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.parser", None)
    error = refusal("top", served.address, "--once")
    assert error.endswith("need prometheus_client: pip install '.[top]' in the checkout\n")


def test_an_engine_that_is_missing_is_named_with_others(served: Served, tmp_path: Path) -> None:
    served.text = shown(tmp_path, "off") + shown(tmp_path, "natural", engine="2")
    answer("top", served.address, "--once", "--engine", 2)
    error = refusal("top", served.address, "--once", "--engine", 1)
    assert f"error: http://{served.address}/metrics: no engine 1; engines: 0, 2" in error


class Endless(socketserver.ThreadingTCPServer):
    """Sends one piece after another without an end, after a beginning."""

    daemon_threads = True
    begin = piece = b""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/metrics"


class _EndlessHandler(socketserver.BaseRequestHandler):
    server: Endless

    def handle(self) -> None:
        with suppress(OSError):
            self.request.recv(4096)
            self.request.sendall(self.server.begin)
            while self.server.piece:
                self.request.sendall(self.server.piece)
            self.request.recv(4096)  # ends when the client leaves


@pytest.fixture
def endless() -> Iterator[Endless]:
    with Endless(("127.0.0.1", 0), _EndlessHandler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


OK = b"HTTP/1.1 200 OK\r\n"
ENDLESS = {
    "a status": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "chunks": (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "a body": (OK + b"\r\n", b"x"),
    "a body of a length": (OK + b"Content-Length: 99999999\r\n\r\n", b"x"),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_one_limit_is_for_a_whole_answer(endless: Endless, kind: str) -> None:
    """Each look at the clock takes a second, so that pieces of any speed come late."""
    endless.begin, endless.piece = ENDLESS[kind]
    seconds = itertools.count()
    with pytest.raises(GoneError, match="does not answer, or not to the end, within 20 s"):
        fetch(endless.url, 20, lambda: float(next(seconds)))
    assert next(seconds) == 21


@pytest.mark.parametrize("kind", ENDLESS)
def test_an_answer_of_any_size_ends(endless: Endless, kind: str) -> None:
    endless.begin, endless.piece = ENDLESS[kind]
    endless.piece *= 10_000
    with pytest.raises(GoneError, match=r"longer than 8 MiB|not to the end"):
        fetch(endless.url, 600 if "body" in kind else 0.5)


def test_a_server_that_says_nothing_is_left_at_the_limit(endless: Endless) -> None:
    with pytest.raises(GoneError, match=r"within 0\.2 s"):
        fetch(endless.url, 0.2)


def test_the_view_needs_a_terminal(served: Served) -> None:
    assert "--once prints one frame" in refusal("top", served.address)


class Terminal:
    """A terminal of 80 columns in which a command runs."""

    def __init__(self, *command: str) -> None:
        self._own, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        environment = os.environ | {"TERM": "xterm-256color", "PYTHONWARNINGS": "ignore"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        self._process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )
        os.close(theirs)
        self._seen = ""

    def wait_for(self, text: str) -> None:
        """Read on until ``text`` comes."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self._seen:
            assert time.monotonic() < deadline, self._seen[-2000:]
            if select.select([self._own], [], [], 0.2)[0]:
                self._seen += os.read(self._own, 65536).decode(errors="replace")
        self._seen = self._seen.partition(text)[2]

    def press(self, key: str) -> None:
        os.write(self._own, key.encode())

    def end(self) -> int:
        """The exit code, once the command has ended; what it still prints is read."""
        deadline = time.monotonic() + PATIENCE_S
        while self._process.poll() is None and time.monotonic() < deadline:
            if select.select([self._own], [], [], 0.05)[0]:
                try:
                    os.read(self._own, 65536)
                except OSError:
                    break
        return self._process.wait(timeout=PATIENCE_S)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._own)


def test_the_view_says_that_an_engine_went_and_came_again(served: Served, tmp_path: Path) -> None:
    command = ("-c", "from hybrid_blocks.tools.cli import app; app()", "top", served.address)
    terminal = Terminal(sys.executable, *command, "--interval", "0.1")
    try:
        terminal.wait_for("slabs 663")
        served.text = None
        terminal.wait_for("waiting for the engine")
        served.text = shown(tmp_path, "manager")
        terminal.wait_for("blocks 501")
        terminal.press("x")
        terminal.wait_for("blocks 501")
        terminal.press("q")
        assert terminal.end() == 0
    finally:
        terminal.close()
