"""A hub of models on this machine that answers ``huggingface_hub``: one model, at commits."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ports import HOST


class Hub:
    """Serves folders as commits of the model ``name``; ``main`` is the commit of its branch."""

    def __init__(self, name: str, url: str) -> None:
        """Serve no commit yet."""
        self.name = name
        self.variables = {
            "HF_ENDPOINT": url,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        self.main = ""
        self._commits: dict[str, Path] = {}

    def move(self, folder: Path) -> str:
        """Move ``main`` to a commit with the files of a folder; return the commit."""
        self.main = hashlib.sha1(str(folder).encode()).hexdigest()
        self._commits[self.main] = folder
        return self.main

    def answer(self, path: str) -> tuple[dict[str, str], bytes] | None:
        """Return the headers and the body for a path, or ``None`` where nothing is."""
        place = unquote(urlsplit(path).path).removeprefix("/")
        if place.startswith(api := f"api/models/{self.name}"):
            kind, _, rest = place.removeprefix(api).removeprefix("/").partition("/")
            return self._api(kind, rest)
        _, found, rest = place.partition(f"{self.name}/resolve/")
        revision, _, name = rest.partition("/")
        commit = self._commit(revision)
        if not found or commit is None or not (file := self._commits[commit] / name).is_file():
            return None
        body = file.read_bytes()
        return {"ETag": f'"{_digest(body)}"', "X-Repo-Commit": commit}, body

    def _api(self, kind: str, rest: str) -> tuple[dict[str, str], bytes] | None:
        commit = self._commit(rest.partition("/")[0] or "main")
        if commit is None or kind not in ("", "revision", "tree"):
            return None
        folder = self._commits[commit]
        files = [it for it in sorted(folder.rglob("*")) if it.is_file()]
        if kind == "tree":
            answer: object = [_entry(it, str(it.relative_to(folder))) for it in files]
        else:
            names = [{"rfilename": str(it.relative_to(folder))} for it in files]
            answer = {"id": self.name, "sha": commit, "siblings": names, "private": False}
        return {"Content-Type": "application/json"}, json.dumps(answer).encode()

    def _commit(self, revision: str) -> str | None:
        commit = self.main if revision == "main" else revision
        return commit if commit in self._commits else None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _entry(file: Path, name: str) -> dict[str, object]:
    content = file.read_bytes()
    return {"type": "file", "path": name, "size": len(content), "oid": _digest(content)}


@contextmanager
def serve(name: str) -> Iterator[Hub]:
    """Serve a hub with one model while the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply(has_body=True)

        def do_HEAD(self) -> None:
            self._reply(has_body=False)

        def _reply(self, *, has_body: bool) -> None:
            found = hub.answer(self.path)
            headers, body = found or ({"X-Error-Code": "EntryNotFound"}, b"")
            self.send_response(200 if found else 404)
            for header, value in headers.items():
                self.send_header(header, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if has_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
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
