from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from runtime import (
    InvalidRequestError,
    LanguageModel,
    ModelMissingError,
    RemoteError,
    SessionClosedError,
    UnsupportedFeatureError,
    connect,
    connect_async,
    key_for,
)
from runtime.remote import http
from tests.runtime.remote.servers import Server, send, serving

KEY = "sk-very-secret-0123456789"


def test_info_lists_the_capabilities_of_a_server(server: Server, folder: Path) -> None:
    with connect(server.base_url, tokenizer=folder) as remote:
        info = remote.info
        assert info.backend == "vllm"
        assert info.name == f"tiny at {server.base_url.removeprefix('http://')}"
        assert (info.vocab_size, info.context_length, info.has_template) == (259, 2048, True)
        assert info.options["server_version"] == "0.32.0"
        assert info.options["tokenizer"] == "local"
        assert {"full vectors", "ranks", "grammar: regex"} <= set(info.capabilities)
        assert any("KV is on the server" in warning for warning in info.warnings)
        assert remote.eos_token_ids == (257, 258)


def test_a_cap_of_alternatives_is_detected_and_named_in_a_warning(model: LanguageModel, folder: Path) -> None:
    with serving(model, cap=20) as server, connect(server.base_url + "/v1/", tokenizer=folder) as remote:
        assert "top 20" in remote.info.capabilities
        assert "full vectors" not in remote.info.capabilities
        assert any("20 likeliest tokens of a position" in warning for warning in remote.info.warnings)


def test_the_vocabulary_size_is_found_by_a_few_requests(model: LanguageModel) -> None:
    with serving(model, cap=20) as server, connect(server.base_url) as remote:
        assert remote.info.vocab_size == 259
        assert remote.info.options["tokenizer"] == "server"
        assert len(server.bodies("/v1/completions")) < 40


def test_connect_async_works_on_an_event_loop(server: Server, folder: Path, model: LanguageModel) -> None:
    async def ask() -> list[int]:
        async with await connect_async(server.base_url, "tiny", tokenizer=folder) as remote:
            return await remote.tokenize_async("hello")

    assert asyncio.run(ask()) == model.tokenize("hello")


def test_a_tokenizer_of_another_model_is_refused(server: Server, tmp_path: Path, folder: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in folder.iterdir():
        (other / file.name).write_text(file.read_text())
    text = (other / "tokenizer.json").read_text().replace('"a": 97', '"a": 98').replace('"b": 98', '"b": 97')
    text = text.replace('"a":97', '"a":98').replace('"b":98,', '"b":97,')
    (other / "tokenizer.json").write_text(text)
    with pytest.raises(InvalidRequestError, match="is not that of tiny"):
        connect(server.base_url, tokenizer=other)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "is the address"),
        ("ftp://host", "begins with http"),
        ("http://user:pw@127.0.0.1", "give the key as api_key"),
        ("http://127.0.0.1/?x=1", "query"),
        ("http://example.com", "unencrypted"),
        ("http://127.0.0.1:99999", "a port is a number from 1 to 65,535, not 99999"),
        ("http://127.0.0.1:0/v1", "a port is a number"),
    ],
)
def test_invalid_addresses_are_refused(url: str, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        connect(url)


@pytest.mark.parametrize("url", ["ftp://u:secret@h", "http://u:secret@[::1", "http://u:secret@h:x", "u:secret@h"])
def test_a_password_in_an_address_is_not_repeated(url: str) -> None:
    with pytest.raises(InvalidRequestError) as fault:
        connect(url)
    assert "secret" not in str(fault.value)


@pytest.mark.parametrize(
    ("host", "sent"),
    [
        ("", False),
        ("127.0.0.1:8001", True),
        ("http://127.0.0.1:8001/v1", True),
        ("127.0.0.1", False),
        ("127.0.0.1:8002", False),
        ("example.org", False),
    ],
)
def test_a_key_from_the_environment_is_sent_to_its_host_only(monkeypatch: pytest.MonkeyPatch, host: str, sent: bool) -> None:
    monkeypatch.setenv("ELSEWISE_API_KEY", KEY)
    monkeypatch.setenv("ELSEWISE_API_HOST", host)
    assert key_for("http://127.0.0.1:8001/v1") == (KEY if sent else "")


def test_an_invalid_host_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELSEWISE_API_KEY", KEY)
    monkeypatch.setenv("ELSEWISE_API_HOST", "a b://c")
    with pytest.raises(InvalidRequestError, match="ELSEWISE_API_HOST"):
        key_for("http://127.0.0.1:8001")


@pytest.mark.parametrize(
    ("options", "said"),
    [({"temperature": 1}, "unknown option"), ({"dialect": "vlm"}, "vllm"), ({"api_key": "a\nb"}, "one line")],
)
def test_invalid_options_of_connect_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        connect("http://127.0.0.1:1", **options)


def test_a_port_without_a_listener_is_a_network_error() -> None:
    began = time.monotonic()
    with pytest.raises(RemoteError, match=r"no connection to 127\.0\.0\.1:9") as fault:
        connect("http://127.0.0.1:9")
    assert fault.value.reason == "network"
    assert time.monotonic() - began < 10


def test_a_host_that_does_not_accept_connections_times_out_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    assert http.CONNECT_SECONDS == 3.0
    monkeypatch.setattr(http, "CONNECT_SECONDS", 0.1)
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(2):  # fills the accept queue; the next connection is not answered at all
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        with pytest.raises(RemoteError, match="does not answer within") as fault:
            connect(f"http://127.0.0.1:{full.getsockname()[1]}")
    assert fault.value.reason == "network"


@pytest.mark.slow
def test_the_timeout_of_the_first_answer_grows_with_the_prompt(
    model: LanguageModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (http.FIRST_SECONDS, http.FIRST_SECONDS_PER_TOKEN) == (60.0, 0.02)
    with serving(model, embeddings=True) as server, connect(server.base_url, tokenizer=folder) as remote:

        async def late(writer: Any) -> None:
            await asyncio.sleep(0.25)
            send(writer, 500, {"error": "after all"})

        monkeypatch.setattr(http, "CONNECT_SECONDS", 0.02)
        monkeypatch.setattr(http, "FIRST_SECONDS", 0.0)
        monkeypatch.setattr(http, "FIRST_SECONDS_PER_TOKEN", 0.05)
        server.raw |= {"/v1/completions": late, "/v1/embeddings": late}
        for ask in (
            lambda ids: remote.top_logprobs_sync(ids, 3),
            lambda ids: list(remote.generate_sync(ids, max_tokens=3)),
            lambda ids: remote.embed_sync([remote.detokenize(ids)]),
        ):
            with pytest.raises(RemoteError, match="has not begun to answer") as fault:
                ask([1, 2])
            assert fault.value.reason == "timeout"
            with pytest.raises(RemoteError, match="after all"):
                ask([1, 2] * 100)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed certificate for this machine, with its key."""
    made = tmp_path / "server.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    command = ["openssl", "req", "-x509", *kind, "-keyout", str(made), *subject]
    out = tmp_path / "certificate.pem"
    subprocess.run([*command, "-out", str(out)], check=True, capture_output=True)
    made.write_text(made.read_text() + out.read_text())
    return made


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_the_certificate_of_a_server_is_verified(
    model: LanguageModel, folder: Path, certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(model, tls=certificate) as server:
        assert server.base_url.startswith("https://")
        with pytest.raises(RemoteError, match=r"is not trusted here \(self-signed certificate\)") as fault:
            connect(server.base_url, api_key=KEY, tokenizer=folder)
        assert fault.value.reason == "network"
        assert not server.seen
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        with connect(server.base_url, api_key=KEY, tokenizer=folder) as remote:
            assert len(remote.top_logprobs_sync([1, 2], 3).ids) == 3


def test_a_server_with_several_models_needs_a_known_name(server: Server, folder: Path) -> None:
    with pytest.raises(ModelMissingError, match="tiny"):
        connect(server.base_url, "large")
    server.models.append({**server.models[0], "id": "second"})
    with pytest.raises(ModelMissingError, match="name one of tiny, second"):
        connect(server.base_url)
    connect(server.base_url, "second", tokenizer=folder).close()


def test_the_key_and_prompts_appear_in_no_error_info_or_log(
    model: LanguageModel, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(model, key=KEY) as server:
        for wrong in (None, KEY + "x"):
            with pytest.raises(RemoteError) as fault:
                connect(server.base_url, api_key=wrong)
            assert fault.value.reason == "denied"
            assert KEY not in str(fault.value)
        with connect(server.base_url, api_key=KEY, tokenizer=folder) as remote:
            remote.top_logprobs_sync(remote.tokenize("a prompt of mine"), 3)
            assert KEY not in repr(remote.info)
    assert KEY not in caplog.text
    assert "prompt of mine" not in caplog.text


def test_a_redirect_is_not_followed(server: Server, folder: Path, model: LanguageModel) -> None:
    with serving(model) as other:

        async def redirect(writer: Any) -> None:
            send(writer, 307, {}, location=other.base_url + "/v1/completions")

        with connect(server.base_url, tokenizer=folder, api_key=KEY) as remote:
            server.raw["/v1/completions"] = redirect
            with pytest.raises(RemoteError, match="redirects to") as fault:
                remote.top_logprobs_sync([1, 2])
        assert fault.value.reason == "redirect"
        assert not other.seen


def test_unsupported_members_of_a_remote_model_are_refused(remote: LanguageModel) -> None:
    for refused in (
        lambda: remote.kv.prefix_match([1]),
        lambda: remote.push_lora("x"),
        lambda: remote.next_token_logprobs_uncached([1]),
        lambda: remote.embed_sync(["a"]),
        lambda: remote.lens_sync([1, 2]),
    ):
        with pytest.raises(UnsupportedFeatureError):
            refused()


def test_a_closed_connection_raises_session_closed(server: Server, folder: Path) -> None:
    remote = connect(server.base_url, tokenizer=folder)
    remote.close()
    remote.close()
    assert isinstance(remote.ended, SessionClosedError)
    with pytest.raises(SessionClosedError):
        remote.top_logprobs_sync([1])


def test_closing_during_an_answer_raises_session_closed(model: LanguageModel, folder: Path) -> None:
    async def ask(remote: LanguageModel) -> None:
        records = remote.generate([1, 2], max_tokens=500, temperature=0)
        await anext(records)
        await remote.close_async()
        with pytest.raises(SessionClosedError):
            async for _ in records:
                pass

    with serving(model, pace=0.02) as server:
        asyncio.run(ask(connect(server.base_url, tokenizer=folder)))


def test_closing_completes_although_its_await_is_cancelled(server: Server, folder: Path) -> None:
    others = set(threading.enumerate())
    remote = connect(server.base_url, tokenizer=folder)
    (own,) = (thread for thread in {*threading.enumerate()} - others if thread.name == "elsewise-remote")

    async def close() -> None:
        closing = asyncio.create_task(remote.close_async())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing

    asyncio.run(close())
    own.join(30)
    assert not own.is_alive()
