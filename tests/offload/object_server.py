"""A server of S3 on this machine: moto's, in a process of its own."""

import ipaddress
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from ports import HOST, held_port

BUCKET = "chunks"


@contextmanager
def object_server(tls: Path | None = None) -> Iterator[dict[str, str]]:
    """Serve an empty bucket; give the environment by which it is reached.

    With a folder ``tls`` it is reached by TLS only; the server's own certificate is written there.
    """
    with held_port() as port:
        yield from _serve(port, tls)


def _serve(port: int, tls: Path | None) -> Iterator[dict[str, str]]:
    url = f"{'https' if tls else 'http'}://{HOST}:{port}"
    command = [sys.executable, "-m", "moto.server", "--host", HOST, "--port", str(port)]
    trusted = {}
    context = None
    if tls is not None:
        certificate, private_key = _certificate(tls)
        command += ["--ssl-cert", str(certificate), "--ssl-key", str(private_key)]
        trusted["SSL_CERT_FILE"] = str(certificate)
        context = ssl.create_default_context(cafile=str(certificate))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _make_bucket(process, url, context)
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        yield trusted | keys | {"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": url}
    finally:
        process.kill()
        process.wait()


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for this machine, signed by itself, and its key."""
    from cryptography import x509  # noqa: PLC0415 - comes with moto
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, HOST)])
    now = datetime.now(UTC)
    address = x509.IPAddress(ipaddress.ip_address(HOST))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(private, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(certificate.public_bytes(pem))
    form = serialization.PrivateFormat.PKCS8
    files[1].write_bytes(private.private_bytes(pem, form, serialization.NoEncryption()))
    return files


def _make_bucket(
    process: "subprocess.Popen[bytes]", url: str, context: ssl.SSLContext | None
) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urlopen(Request(f"{url}/{BUCKET}", method="PUT"), context=context):
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
