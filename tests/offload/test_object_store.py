"""The object tier against a server of S3 and a folder: bindings and manager."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hybrid_blocks._core.offload import ObjectStore
from hybrid_blocks.errors import InvalidArgumentError
from object_server import BUCKET, object_server, objects_of
from test_host_cache import ATTENTION, LAYOUTS, STATE, TOKENS, cache, chain, chunks_of, key, look_up

pytestmark = pytest.mark.wheel

MOST = 60.0
URL = f"s3://{BUCKET}/some/prefix"


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    with object_server() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield environment


def opened(url: str, **options: float) -> ObjectStore:
    store = ObjectStore(url, layouts=LAYOUTS, **options)  # type: ignore[arg-type]
    assert store.wait(MOST)
    return store


def stored(url: str, keys: list[bytes], chunks: list[npt.NDArray[np.uint8]]) -> int:
    store = opened(url)
    num_stored = store.store(keys, [TOKENS] * len(keys), chunks)
    assert store.wait(MOST)
    store.close()
    assert store.take_warnings() == []
    return num_stored


def test_a_bucket_behind_tls_is_trusted_by_the_certificate_that_is_named(tmp_path: Path) -> None:
    keys, _ = chain(ATTENTION, 2)
    with object_server(tls=tmp_path) as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.delenv("SSL_CERT_FILE")
        stranger = ObjectStore(URL, layouts=LAYOUTS)
        warnings: list[str] = []
        while not warnings:
            stranger.wait(0.1)
            warnings = stranger.take_warnings()
        assert any("failed" in text for text in warnings), warnings
        stranger.close()
        patch.setenv("SSL_CERT_FILE", environment["SSL_CERT_FILE"])
        assert stored(URL, keys, chunks_of(2)) == 2
        objects = opened(URL)
        into = [np.zeros(4096, np.uint8) for _ in keys]
        assert objects.load(keys, into) == [True] * 2
        assert all((got == want).all() for got, want in zip(into, chunks_of(2), strict=True))


def test_another_engine_finds_what_was_stored_in_a_bucket(server: dict[str, str]) -> None:
    keys, tokens = chain(ATTENTION, 8)
    state = key(STATE, 7)
    content = [*chunks_of(8), np.full(8000, 99, dtype=np.uint8)]
    assert stored(URL, [*keys, state], content) == 9
    assert stored(URL, [*keys, state], chunks_of(9)) == 0, "they are there already"
    names = objects_of(server)
    assert len(names) == 9
    digest = keys[0][:-4].hex()
    assert f"some/prefix/{LAYOUTS[ATTENTION].hex()}/{ATTENTION}/{digest}" in names

    objects = opened(URL)
    found = look_up(cache(), [*keys, state], [*tokens, tokens[-1]], objects=objects)
    assert (found.num_tokens, found.on_host, found.on_disk) == (8 * TOKENS, [], [])
    assert sorted(found.in_objects) == sorted([*keys, state])
    at = found.in_objects.index(keys[2])
    assert found.in_objects_tokens[at] == tokens[2]
    into = [np.zeros_like(chunk) for chunk in content]
    missing = key(ATTENTION, 99)
    loaded = objects.load([*keys, state, missing], [*into, np.zeros(4096, np.uint8)])
    assert loaded == [True] * 9 + [False]
    assert all((got == want).all() for got, want in zip(into, content, strict=True))


@pytest.mark.usefixtures("server")
def test_who_comes_second_does_not_write_over_an_object() -> None:
    name = [key(ATTENTION, 0, chat="twice")]
    first, second = opened(URL), opened(URL)
    first.store(name, [TOKENS], [np.full(4096, 1, dtype=np.uint8)])
    assert first.wait(MOST)
    assert second.store(name, [TOKENS], [np.full(4096, 2, dtype=np.uint8)]) == 1
    assert second.wait(MOST)
    into = np.zeros(4096, dtype=np.uint8)
    assert second.load(name, [into]) == [True]
    assert (into == 1).all()
    assert second.take_warnings() == []


@pytest.mark.usefixtures("server")
def test_a_bucket_that_refuses_is_warned_of_once_and_passed_by() -> None:
    store = ObjectStore("s3://no-such-bucket/x", layouts=LAYOUTS)
    assert not store.wait(2.0) or store.is_paused
    keys, tokens = chain(ATTENTION, 2)
    assert store.is_paused
    assert store.store(keys, tokens, chunks_of(2)) == 0
    assert store.load(keys, chunks_of(2)) == [False, False]
    assert store.contains(keys) == [False, False]
    (warning,) = store.take_warnings()
    assert "s3://no-such-bucket/x failed" in warning
    assert "not used for 60 s, requests go on" in warning
    store.close()


def test_times_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="retry_after -1; it must be a number of sec"):
        ObjectStore(f"file://{tmp_path}", layouts=LAYOUTS, retry_after=-1.0)
