"""``hybrid-blocks view``: its page answers its user alone, and plans by the code of ``plan``."""

import asyncio
import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bokeh.document import Document
from bokeh.util.token import generate_session_id
from command import as_json, refusal
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.view.controls import Controls
from hybrid_blocks.tools.view.server import GuardedServer, make_server
from scripts import SCRIPTS
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect


@pytest.fixture
def served() -> Iterator[GuardedServer]:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    made = make_server(load_model("Qwen3.5-27B"), "24GiB", 0)
    made.start()
    yield made
    made.stop()
    made.io_loop.close(all_fds=True)
    asyncio.set_event_loop(None)


def host_of(served: GuardedServer) -> str:
    return served.address.split("/")[2]


def fetched(served: GuardedServer, address: str, **headers: str) -> tuple[int, str]:
    """The status and the text that a request gets."""
    request = HTTPRequest(address, headers=headers, follow_redirects=False)
    client = AsyncHTTPClient(force_instance=True)
    answer = served.io_loop.run_sync(lambda: client.fetch(request, raise_error=False))
    client.close()
    return answer.code, answer.body.decode()


def sent(served: GuardedServer, head: str) -> str:
    """Return the server's answer to bytes that no client of HTTP sends."""

    async def ask() -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(host_of(served)[10:]))
        writer.write(head.encode("latin-1"))
        answer = (await reader.read()).decode("latin-1")
        writer.close()
        await writer.wait_closed()
        return answer

    return str(served.io_loop.run_sync(ask))


def session_token(served: GuardedServer) -> str:
    """The token of Bokeh's session that a page holds."""
    _, page = fetched(served, served.address)
    return page.split('"token":"')[1].split('"')[0]


def socket_opens(served: GuardedServer, address: str, token: str, **headers: str) -> bool:
    """Return whether a websocket opens and greets."""

    async def ask() -> bool:
        request = HTTPRequest(address.replace("http", "ws", 1), headers=headers)
        try:
            connection = await websocket_connect(request, subprotocols=["bokeh", token])
        except HTTPClientError as error:
            if error.code != 403:
                raise
            return False
        greeting = await connection.read_message()
        connection.close()
        return greeting is not None and "ACK" in str(greeting)

    return bool(served.io_loop.run_sync(ask))


def test_the_printed_address_opens_the_page_and_its_scripts(served: GuardedServer) -> None:
    code, page = fetched(served, served.address)
    assert code == 200
    assert "hybrid-blocks plan" in page
    assert "default-src 'none'" in page
    assert fetched(served, f"{served.address}static/js/bokeh.min.js")[0] == 200
    opened = {"Origin": f"http://{host_of(served)}"}
    assert socket_opens(served, f"{served.address}ws", session_token(served), **opened)


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/ws", "/static/js/bokeh.min.js", "/favicon.ico", "/autoload.js", "/metadata"),
        *("/{other}/", "/{short}/", "/{token}x/", "//{token}/", "/{token}/metadata"),
        *("/{token}/autoload.js", "/%2e%2e/{token}/", "/x/../{token}/", "/?token={token}"),
    ],
)
def test_an_address_without_its_token_is_refused(served: GuardedServer, path: str) -> None:
    token = served.address.split("/")[3]
    written = path.format(token=token, short=token[:-1], other="x" * len(token))
    code, page = fetched(served, f"http://{host_of(served)}{written}")
    assert code == 403
    assert token not in page


def test_tokens_differ(served: GuardedServer) -> None:
    other = make_server(load_model("Qwen3.5-27B"), "24GiB", 0)
    other.stop()
    tokens = [one.address.split("/")[3] for one in (served, other)]
    assert tokens[0] != tokens[1]
    assert min(map(len, tokens)) >= 43


HOSTS = ("evil.example:{port}", "evil.example", "127.0.0.1", "localhost:1", "127.0.0.1:{port}.", "")


@pytest.mark.parametrize("host", HOSTS)
def test_a_name_of_others_for_the_server_is_refused(served: GuardedServer, host: str) -> None:
    token, written = session_token(served), host.format(port=host_of(served)[10:])
    for path in ("", "ws", "static/js/bokeh.min.js"):
        code, page = fetched(served, f"{served.address}{path}", Host=written)
        assert code == 403
        assert "evil" not in page
    for origin in (f"http://{written}", f"http://{host_of(served)}"):
        headers = {"Host": written, "Origin": origin}
        assert not socket_opens(served, f"{served.address}ws", token, **headers)


@pytest.mark.parametrize(
    "origin",
    [
        *("", "http://evil.example", "null", "http://localhost:{port}", "https://127.0.0.1:{port}"),
        "http://127.0.0.1:{port}.evil.example",
    ],
)
def test_a_page_of_others_opens_no_websocket(served: GuardedServer, origin: str) -> None:
    token = session_token(served)
    headers = {"Origin": origin.format(port=host_of(served)[10:])} if origin else {}
    assert not socket_opens(served, f"{served.address}ws", token, **headers)
    if headers:
        assert fetched(served, served.address, **headers)[0] == 403


def test_names_of_this_machine_are_served(served: GuardedServer) -> None:
    for name in ("localhost", "LOCALHOST", "[::1]", "127.0.0.1"):
        assert fetched(served, served.address, Host=f"{name}:{host_of(served)[10:]}")[0] == 200


def test_two_names_or_none_are_refused(served: GuardedServer) -> None:
    path = f"/{served.address.split('/')[3]}/"
    host = f"Host: {host_of(served)}\r\n"
    end = "Connection: close\r\n\r\n"
    assert " 200 " in sent(served, f"GET {path} HTTP/1.1\r\n{host}{end}")[:20]
    for head in (
        f"GET {path} HTTP/1.0\r\n",
        f"GET {path} HTTP/1.1\r\n{host}Host: evil.example\r\n",
        f"GET http://evil.example{path} HTTP/1.1\r\n{host}",
    ):
        assert " 200 " not in sent(served, head + end)[:20]


def test_a_session_of_another_server_is_refused(served: GuardedServer) -> None:
    forged = generate_session_id(secret_key=b"another key of 32 bytes and more", signed=True)
    for name in ("bokeh-session-id", "bokeh-token"):
        assert fetched(served, f"{served.address}?{name}={forged}")[0] in {403, 500}


def test_refusals_are_not_logged(served: GuardedServer, caplog: pytest.LogCaptureFixture) -> None:
    assert fetched(served, f"http://{host_of(served)}/%1b[31m")[0] == 403
    sent(served, "GET /\x9b31m HTTP/1.1\r\nHost: \x1b[2J\r\nConnection: close\r\n\r\n")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_no_other_site_may_frame_or_load_an_answer(served: GuardedServer) -> None:
    token = served.address.split("/")[3]
    end = f"Host: {host_of(served)}\r\nConnection: close\r\n\r\n"
    answer = sent(served, f"GET /{token}/ HTTP/1.1\r\n{end}")
    for header in (
        *("X-Frame-Options: DENY", "Referrer-Policy: no-referrer"),
        *("X-Content-Type-Options: nosniff", "Cross-Origin-Resource-Policy: same-origin"),
    ):
        assert header in answer


@pytest.fixture
def page() -> Document:
    document = Document()
    Controls(load_model("Qwen3.5-27B"), "24GiB").show(document)
    return document


def set_value(page: Document, name: str, value: object) -> None:
    control: Any = page.get_model_by_name(name)
    assert control is not None
    control.value = value


def shown(page: Document) -> dict[str, Any]:
    state: Any = page.get_model_by_name("state")
    picture: dict[str, Any] = json.loads(state.data["json"][0])
    return picture


def longest(picture: dict[str, Any]) -> list[float]:
    return [side["at"][-1]["running"] for side in picture["sides"]]


def test_a_page_begins_with_the_defaults_of_the_plan(page: Document) -> None:
    fields = {"drafts": 0, "tp": "1", "format": "auto", "most": "256", "longest": ""}
    assert {name: value(page, name) for name in fields} == fields
    report = as_json("plan", "Qwen3.5-27B", "--memory", "24GiB")
    wanted = [report[side]["lengths"][0]["running"] for side in ("vllm", "natural")]
    assert longest(shown(page)) == wanted


def value(page: Document, name: str) -> object:
    control: Any = page.get_model_by_name(name)
    return control.value


def test_controls_plan_again_as_the_command_does(page: Document) -> None:
    moved = {"model": "Qwen3-Next-80B-A3B", "memory": "40GiB", "tp": "2", "format": "fp8"}
    for name, value in (moved | {"most": "512", "longest": "32k"}).items():
        set_value(page, name, value)
    report = as_json(
        "plan",
        *("Qwen3-Next-80B-A3B", "--memory", "40GiB", "--tp", 2),
        *("--kv-cache-dtype", "fp8", "--max-num-seqs", 512, "--max-model-len", "32k"),
    )
    picture = shown(page)
    assert picture["model"] == report["model"]
    assert picture["max_num_seqs"] == 512
    wanted = [report[side]["lengths"][0]["running"] for side in ("vllm", "natural")]
    assert longest(picture) == wanted


def test_the_length_stays_where_models_reach_different_lengths(page: Document) -> None:
    slider: Any = page.get_model_by_name("length")
    assert shown(page)["lengths"][slider.value] == 8192
    set_value(page, "model", "Gemma-3-27B")
    assert shown(page)["lengths"][slider.value] == 8192
    assert slider.end == len(shown(page)["lengths"]) - 1


def test_a_mistake_is_said_and_the_last_plan_stays(page: Document) -> None:
    before, error = shown(page), page.get_model_by_name("error")
    assert error is not None
    for name, wrong, told in (
        ("memory", "24", "has no unit"),
        ("model", "<b>none", "Model: choose a built-in name"),
        ("memory", "<b>1", "&lt;b&gt;1"),
        ("memory", "1" * 33, "at most 32 letters"),
        ("tp", "3", "Tensor parallel: choose one of the list"),
        ("format", "/etc/passwd", "KV format: choose one of the list"),
        ("longest", "32 thousand", "no number of tokens"),
    ):
        control: Any = page.get_model_by_name(name)
        right = control.value
        control.value = wrong
        assert told in error.text  # type: ignore[attr-defined]
        assert shown(page) == before
        control.value = right
        assert error.text == ""  # type: ignore[attr-defined]


def test_a_browser_sends_no_more_drafts_than_its_slider_has(page: Document) -> None:
    before = shown(page)
    for drafts in (9, -1, float("nan")):
        set_value(page, "drafts", drafts)
        set_value(page, "memory", f"{30 + drafts}GiB")
        error: Any = page.get_model_by_name("error")
        assert "Draft tokens: from 0 to 8" in error.text
        assert shown(page) == before


def test_a_page_reads_no_file_that_it_names(
    page: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "Phi-4"
    secret.write_text('{"secret": "sesame"}')
    monkeypatch.chdir(tmp_path)
    set_value(page, "longest", "8k")
    set_value(page, "model", "Phi-4")
    assert shown(page)["model"] == "Phi-4"
    for name in (str(secret), "./Phi-4", str(tmp_path), "http://127.0.0.1:1/config.json"):
        set_value(page, "model", name)
        error: Any = page.get_model_by_name("error")
        assert error.text == '<p class="warn">Model: choose a built-in name from the list</p>'
    assert shown(page)["model"] == "Phi-4"


def test_a_model_of_a_file_that_the_command_names_can_be_chosen_again(tmp_path: Path) -> None:
    fields = {"architectures": [SCRIPTS], "model_type": "llama", "hidden_size": 64}
    fields |= {"num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 512}
    config = tmp_path / "config.json"
    config.write_text(json.dumps(fields))
    document = Document()
    Controls(load_model(str(config)), "64MiB").show(document)
    config.unlink()
    first = value(document, "model")
    assert first == f"{SCRIPTS}, 3 layers"
    set_value(document, "memory", "8GiB")
    set_value(document, "longest", "512")
    set_value(document, "model", "Qwen3.5-27B")
    assert shown(document)["model"] == "Qwen3.5-27B"
    set_value(document, "model", first)
    assert shown(document)["model"] == first


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nothing-like-it"], "neither a file, a directory nor a built-in model"),
        (["--memory", "24"], "has no unit"),
    ],
)
def test_what_cannot_be_planned_is_refused(arguments: list[str], told: str) -> None:
    assert told in refusal("view", *arguments, "--port", 0)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        error = refusal("view", "--port", port)
    assert f"--port {port}: Address already in use" in error


def test_without_bokeh_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybrid_blocks.tools.cli.output.find_spec", lambda _: None)
    assert refusal("view") == "error: view needs Bokeh: pip install '.[view]' in the checkout\n"
