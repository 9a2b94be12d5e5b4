"""Ports for servers that tests start."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

HOST = "127.0.0.1"


@contextmanager
def held_port() -> Iterator[int]:
    """Keep a port that the system chose for one server, while the context lasts.

    The socket is bound and never listens: a server may listen in its stead, as servers allow the
    reuse of addresses, and no other process is given the port.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((HOST, 0))
        port: int = holder.getsockname()[1]
        yield port
