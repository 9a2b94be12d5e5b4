"""A hub on this machine that answers ``huggingface_hub``: one model, whose branch can move."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from ports import HOST

Answer = tuple[dict[str, str], bytes]


class Hub:
    """Serves files as commits of the model ``name``; ``main`` is the commit of its branch.

    ``variables`` lead a process to the hub.
    """

    def __init__(self, name: str, url: str) -> None:
        """Serve no commit yet."""
        self.name = name
        self.main = ""
        self.variables = {"HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0"}
        self._commits: dict[str, Mapping[str, bytes]] = {}

    def move(self, files: Mapping[str, bytes]) -> None:
        """Move ``main`` to a commit with these files."""
        self.main = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self._commits[self.main] = files

    def answer(self, path: str) -> Answer | None:
        """Return the headers and the body for a path, or ``None`` where nothing is."""
        place = unquote(urlsplit(path).path).removeprefix("/")
        if place.startswith(api := f"api/models/{self.name}"):
            kind, _, rest = place.removeprefix(api).removeprefix("/").partition("/")
            return self._api(kind, self._files(rest.partition("/")[0] or "main"))
        _, _, rest = place.partition(f"{self.name}/resolve/")
        revision, _, name = rest.partition("/")
        body = self._files(revision).get(name)
        if body is None:
            return None
        return {"ETag": f'"{_digest(body)}"', "X-Repo-Commit": self.main}, body

    def _files(self, revision: str) -> Mapping[str, bytes]:
        return self._commits.get(self.main if revision == "main" else revision, {})

    def _api(self, kind: str, files: Mapping[str, bytes]) -> Answer:
        answer: object = [
            {"type": "file", "path": name, "size": len(body), "oid": _digest(body)}
            for name, body in files.items()
        ]
        if kind != "tree":
            names = [{"rfilename": name} for name in files]
            answer = {"id": self.name, "sha": self.main, "siblings": names, "private": False}
        return {"Content-Type": "application/json"}, json.dumps(answer).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def serve(name: str) -> Iterator[Hub]:
    """Serve a hub with one model while the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(self._head())

        def do_HEAD(self) -> None:
            self._head()

        def _head(self) -> bytes:
            found = hub.answer(self.path)
            headers, body = found or ({"X-Error-Code": "EntryNotFound"}, b"")
            self.send_response(200 if found else 404)
            for header, value in headers.items():
                self.send_header(header, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            return body

        def log_message(self, *_: object) -> None:
            """Write no log line."""

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        hub = Hub(name, f"http://{HOST}:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
