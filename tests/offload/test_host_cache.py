"""The bindings of the host cache and the disk."""

import hashlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hybrid_blocks._core.offload import DiskStore, HostCache, Lookup, RequestKeys
from hybrid_blocks.errors import HybridBlocksError, InvalidArgumentError

ATTENTION, STATE = 0, 1
TOKENS = 16
LAYOUTS = [b"a" * 16, b"b" * 16]


def key(group: int, at: int, *, chat: str = "chat") -> bytes:
    digest = hashlib.sha256(f"{chat} {at}".encode()).digest()
    return digest + group.to_bytes(4, "big")


def chain(group: int, count: int, *, chat: str = "chat") -> tuple[list[bytes], list[int]]:
    keys = [key(group, at, chat=chat) for at in range(count)]
    return keys, [(at + 1) * TOKENS for at in range(count)]


def names(host: HostCache, keys: list[bytes], tokens: list[int]) -> RequestKeys:
    names = RequestKeys(host)
    names.extend(keys, tokens)
    return names


def look_up(host: HostCache, keys: list[bytes], tokens: list[int], **options: Any) -> Lookup:
    return host.lookup(names(host, keys, tokens), **options)


def open_request(host: HostCache, keys: list[bytes], tokens: list[int]) -> int:
    return host.open_request(names(host, keys, tokens))


def cache(num_bytes: int = 64 * 4096) -> HostCache:
    return HostCache(
        num_bytes,
        hash_block_size=TOKENS,
        chunk_tokens=[TOKENS, TOKENS],
        chunk_bytes=[4096, 8000],
        windows=[None, 1],
    )


def store(host: HostCache, request: int, keys: list[bytes], tokens: list[int]) -> list[int]:
    begun = host.begin_store(request, keys, tokens)
    assert begun is not None
    stored, offsets = begun
    assert [host.presence(it) for it in stored] == [1] * len(stored)
    assert host.complete_store(stored) == stored
    return [int(offset) for offset in offsets]


def test_a_look_up_answers_for_all_groups_in_one_call() -> None:
    host = cache()
    keys, tokens = chain(ATTENTION, 8)
    states = [key(STATE, at) for at in range(8)]
    request = open_request(host, keys, tokens)
    store(host, request, keys, tokens)
    assert look_up(host, keys + states, tokens * 2).num_tokens == 0, "no state, nothing to restore"
    store(host, request, [states[4]], [tokens[4]])
    found = look_up(host, keys + states, tokens * 2)
    assert found.num_tokens == 5 * TOKENS
    assert found.on_disk == []
    assert sorted(found.on_host) == sorted([*keys[:5], states[4]])
    assert look_up(host, keys + states, tokens * 2, limit=4 * TOKENS).num_tokens == 0
    # Blocks that the device has are not loaded again.
    found = look_up(host, keys + states, tokens * 2, num_computed=3 * TOKENS)
    assert sorted(found.on_host) == sorted([*keys[3:5], states[4]])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"windows": [None]}, "2 chunk_tokens, 2 chunk_bytes and 1 windows"),
        ({"hash_block_size": 32}, r"chunks of 16 tokens in group 0"),
        ({"chunk_bytes": [0, 0]}, "no group has chunks"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(changed: dict[str, object], message: str) -> None:
    sizes: dict[str, object] = {"hash_block_size": TOKENS, "chunk_tokens": [TOKENS, TOKENS]}
    sizes |= {"chunk_bytes": [4096, 8000], "windows": [None, 1]}
    with pytest.raises(InvalidArgumentError, match=message):
        HostCache(64 * 4096, **(sizes | changed))  # type: ignore[arg-type]


def test_a_small_region_says_what_is_needed() -> None:
    with pytest.raises(InvalidArgumentError, match="4096 bytes of host memory; at least 32768"):
        cache(4096)


def test_keys_that_grow_are_looked_up_as_those_that_are_given_at_once() -> None:
    host = cache()
    keys, tokens = chain(ATTENTION, 8)
    store(host, open_request(host, keys, tokens), keys, tokens)
    state = key(STATE, 5)
    store(host, open_request(host, keys, tokens), [state], [tokens[5]])
    grown = RequestKeys(host)
    assert (len(grown), grown.num_tokens, host.lookup(grown).num_tokens) == (0, 0, 0)
    grown.extend(keys[:4], tokens[:4])
    assert host.lookup(grown).num_tokens == 0
    with pytest.raises(InvalidArgumentError, match="a key for 17 tokens"):
        grown.extend([keys[4], keys[5]], [tokens[4], 17])
    assert (len(grown), grown.num_tokens) == (4, tokens[3])
    grown.extend([*keys[4:], state], [*tokens[4:], tokens[5]])
    found, at_once = host.lookup(grown), look_up(host, [*keys, state], [*tokens, tokens[5]])
    assert found.num_tokens == at_once.num_tokens == 6 * TOKENS
    assert found.on_host == at_once.on_host
    assert sorted(found.on_host) == sorted([*keys[:6], state])


def test_wrong_keys_are_refused_and_change_nothing() -> None:
    host = cache()
    with pytest.raises(InvalidArgumentError, match="a digest of 16 or 32 bytes"):
        host.presence(b"short")
    with pytest.raises(InvalidArgumentError, match="a key of group 7; there are 2 groups"):
        look_up(host, [key(7, 0)], [TOKENS])
    with pytest.raises(InvalidArgumentError, match="a key for 17 tokens"):
        look_up(host, [key(0, 0)], [17])
    with pytest.raises(InvalidArgumentError, match="1 keys with 2 token counts"):
        open_request(host, [key(0, 0)], [16, 32])
    with pytest.raises(HybridBlocksError, match="look up again"):
        host.begin_load([key(0, 0)])
    assert (host.num_units, host.live_bytes) == (0, 0)


def disk(path: Path, **options: object) -> DiskStore:
    settings: dict[str, object] = {"max_bytes": 64 << 20, "layouts": LAYOUTS} | options
    return DiskStore(path, **settings)  # type: ignore[arg-type]


def chunks_of(count: int) -> list[npt.NDArray[np.uint8]]:
    return [np.full(4096, at + 1, dtype=np.uint8) for at in range(count)]


def test_a_folder_in_use_and_a_file_in_its_place_are_refused(tmp_path: Path) -> None:
    first = disk(tmp_path / "used")
    with pytest.raises(HybridBlocksError, match="in use by another process"):
        disk(tmp_path / "used")
    del first
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        disk(tmp_path / "file")


def test_a_damaged_chunk_is_never_data_and_is_warned_of(tmp_path: Path) -> None:
    keys, tokens = chain(ATTENTION, 1)
    store_ = disk(tmp_path, direct=False)
    store_.store(keys, tokens, chunks_of(1))
    (segment,) = tmp_path.glob("*/*.open")
    content = bytearray(segment.read_bytes())
    content[content.index(b"\x01" * 4096)] ^= 255
    segment.write_bytes(content)
    assert store_.load(keys, [np.zeros(4096, np.uint8)]) == [False]
    assert store_.contains(keys) == [False]
    (warning,) = store_.take_warnings()
    assert "4096 bytes" in warning
    assert store_.take_warnings() == []


def test_threads_share_a_disk_and_a_cache(tmp_path: Path) -> None:
    shared, host = disk(tmp_path), cache(512 * 4096)
    region = np.zeros(host.region_bytes, dtype=np.uint8)
    failures: list[str] = []

    def work(chat: str, value: int) -> None:
        keys, tokens = chain(ATTENTION, 16, chat=chat)
        offsets = store(host, open_request(host, keys, tokens), keys, tokens)
        views = [region[offset : offset + 4096] for offset in offsets]
        for view in views:
            view[:] = value
        shared.store(keys, tokens, views)
        for view in views:
            view[:] = 0
        if shared.load(keys, views) != [True] * 16 or not all((it == value).all() for it in views):
            failures.append(chat)

    threads = [threading.Thread(target=work, args=(f"chat {n}", n + 1)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert shared.num_chunks == 8 * 16
