"""A server of S3 on this machine: moto's, in a process of its own."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

BUCKET = "chunks"


@contextmanager
def object_server() -> Iterator[dict[str, str]]:
    """Serve an empty bucket; give the environment by which it is reached."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _make_bucket(process, url)
        yield {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": url,
        }
    finally:
        process.kill()
        process.wait()


def _make_bucket(process: "subprocess.Popen[bytes]", url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urlopen(Request(f"{url}/{BUCKET}", method="PUT")):
                return
        except HTTPError:
            raise
        except URLError:
            assert process.poll() is None, "moto's server does not start"
            assert time.monotonic() < deadline, "moto's server does not answer"
            time.sleep(0.05)


def objects_of(environment: dict[str, str]) -> list[str]:
    """Names of all objects in the bucket, as the server's list tells them."""
    with urlopen(f"{environment['AWS_ENDPOINT_URL']}/{BUCKET}") as answer:
        text = answer.read().decode()
    return [part.partition("</Key>")[0] for part in text.split("<Key>")[1:]]
