"""The page of a plan with controls, served to the browser of one user of this machine."""

import secrets
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from bokeh.document import Document
from bokeh.server.server import BaseServer
from bokeh.server.tornado import BokehTornado
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.ioloop import IOLoop
from tornado.web import ErrorHandler, OutputTransform

from hybrid_blocks.model import Model
from hybrid_blocks.tools.view.controls import START, Controls, plan
from hybrid_blocks.tools.view.page import POLICY, frame

ADDRESS: Final = "127.0.0.1"

NAMES: Final = (ADDRESS, "localhost", "[::1]")
"""Names by which a browser of this machine may call the server."""

MOST_MESSAGE_BYTES: Final = 2**20

HTTP_PORT: Final = 80
"""A browser leaves this port out."""


class GuardedServer(BaseServer):
    """Answers requests alone that name this machine and carry the token of the address.

    A page of another site may reach the port under a name of its own, and other users of the
    machine may too. A cookie would go to each port of the machine, so the token is in the path.
    """

    def __init__(self, open_page: Callable[[str, Document], None], port: int) -> None:
        listening = socket.create_server((ADDRESS, port))
        listening.setblocking(False)
        self._bound: int = listening.getsockname()[1]
        self._token = secrets.token_urlsafe(32)
        hosts = {f"{name}:{self._bound}" for name in NAMES}
        if self._bound == HTTP_PORT:
            hosts |= set(NAMES)
        policy = POLICY.format(" 'self'", "; connect-src 'self'")
        application = _GuardedApplication(
            {"/": partial(open_page, policy)}, hosts=hosts, token=self._token
        )
        http = HTTPServer(application, max_body_size=0)
        http.add_socket(listening)
        super().__init__(IOLoop.current(), application, http)

    @property
    def address(self) -> str:
        """The page's address, for its user alone.

        Another user could answer at ``localhost`` where that is an address of IPv6.
        """
        return f"http://{ADDRESS}:{self._bound}/{self._token}/"


class _GuardedApplication(BokehTornado):
    def __init__(self, pages: Any, *, hosts: set[str], token: str) -> None:
        self._hosts, self._token = hosts, token
        super().__init__(
            pages,
            prefix=token,
            extra_websocket_origins=sorted(hosts),
            secret_key=secrets.token_bytes(32),
            sign_sessions=True,
            include_headers=[],
            include_cookies=[],
            websocket_max_message_size_bytes=MOST_MESSAGE_BYTES,
            transforms=[_Sealed],
            log_function=lambda _: None,  # an address is text of others, or holds the token
        )

    def find_handler(self, request: HTTPServerRequest, **options: Any) -> Any:
        """Refuse a request before its path is looked at any further."""
        if self._is_ours(request):
            return super().find_handler(request, **options)
        return self.get_handler_delegate(request, ErrorHandler, {"status_code": 403})

    def _is_ours(self, request: HTTPServerRequest) -> bool:
        hosts = request.headers.get_list("Host")
        origins = request.headers.get_list("Origin")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return False
        is_socket = "Upgrade" in request.headers
        if (origins or is_socket) and origins != [f"http://{hosts[0]}"]:
            return False
        _, _, path = request.path.partition("/")
        given, _, page = path.partition("/")
        is_page = page in {"", "ws"} or page.startswith("static/")
        return is_page and secrets.compare_digest(given.encode(), self._token.encode())


class _Sealed(OutputTransform):
    """Tells browsers to show answers to no other site."""

    def transform_first_chunk(
        self,
        status_code: int,
        headers: Any,
        chunk: bytes,
        finishing: bool,  # noqa: ARG002
    ) -> tuple[int, Any, bytes]:
        headers["X-Frame-Options"] = "DENY"
        headers["X-Content-Type-Options"] = "nosniff"
        headers["Referrer-Policy"] = "no-referrer"
        headers["Cross-Origin-Resource-Policy"] = "same-origin"
        return status_code, headers, chunk


def serve(model: Model, memory: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve the page until a signal ends the process; ``on_ready`` gets the address.

    Raises:
        HybridBlocksError: the first plan cannot be made.
        OSError: the port is taken.
    """
    plan(model, memory, START)
    server = make_server(model, memory, port)
    server.start()
    on_ready(server.address)
    server.io_loop.start()  # a signal ends the process as any other command


def make_server(model: Model, memory: str, port: int) -> GuardedServer:
    """Return a server whose page begins with this plan; port 0 is a free one."""

    def open_page(policy: str, page: Document) -> None:
        Controls(model, memory).show(page)
        frame(page, policy)

    return GuardedServer(open_page, port)
