"""A model on a server, from the command line."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest

import app.window
from runtime import Connection, load
from runtime.remote.saved import keep_connection
from tests.app.cli.conftest import Elsewise
from tests.runtime.hub.conftest import Keychain
from tests.runtime.remote.servers import Server, serving, tokenizer_folder
from tests.tiny_models import tiny_path

KEY = "sk-very-secret-0123456789"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with load("mock", backend="mock") as model, serving(model, embeddings=True, key=KEY) as made:
        monkeypatch.setenv("ELSEWISE_API_HOST", made.base_url.removeprefix("http://"))
        yield made


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ELSEWISE_API_KEY", KEY)
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "models"))


@pytest.mark.slow
def test_a_conversation_moves_from_a_server_to_a_local_model(
    elsewise: Elsewise, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ("--connect", server.base_url, "--tokenizer", str(tokenizer_folder(tmp_path / "tokenizer")))
    lines = ("one", "/model nowhere", "two", f"/model {tiny_path('llama')}", "three")
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    done = elsewise("chat", *here, "--backend", "hf", "--max-tokens", "4", "--seed", "1")
    assert "nowhere" in done.err
    assert "(hf, context " in done.err, "the model that was asked for, not the server's again"
    assert done.err.count("4 tokens, ") == 3, done.err


@pytest.mark.slow
def test_ask_score_and_embed_use_a_server(elsewise: Elsewise, server: Server, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Hello there")
    here = ("--connect", server.base_url, "--tokenizer", str(tokenizer_folder(tmp_path / "tokenizer")))
    greedy = ("--temperature", "0", "--max-tokens", "5", "--alternatives", "2")
    asked = elsewise("ask", "Hi", *here, *greedy)
    assert asked.code == 0, asked.err
    assert "rank 1" in asked.out
    assert "KV is on the server" in asked.err
    local = elsewise("ask", "Hi", "--model", "mock", "--backend", "mock", *greedy)
    assert asked.out == local.out
    scored = elsewise("score", str(text), *here, "--json")
    assert scored.code == 0, scored.err
    rows = [json.loads(line) for line in scored.out.splitlines()]
    assert rows[3]["logprob"] < 0
    assert rows[3]["entropy"] is None
    assert elsewise("score", str(text), *here).code == 0
    vectors = elsewise("embed", str(text), *here)
    assert vectors.code == 0, vectors.err
    assert KEY not in asked.out + asked.err + scored.err + vectors.err


def test_a_session_is_continued_by_a_server_and_the_window_opens_with_one(
    elsewise: Elsewise, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ("--connect", server.base_url, "--tokenizer", str(tokenizer_folder(tmp_path / "tokenizer")))
    few = ("--session", "Far", "--temperature", "0", "--max-tokens", "4")
    first = elsewise("ask", "Hi", *here, *few)
    assert first.code == 0, first.err
    assert elsewise("ask", "And then?", *here, *few).code == 0
    shown = elsewise("sessions", "show", "1").out
    assert shown.index("Hi") < shown.index(first.out.strip()) < shown.index("And then?")
    # the option of the window does not slip into a command
    misplaced = elsewise("--connect", server.base_url, "ask", "Hi")
    assert (misplaced.code, "goes behind the command" in misplaced.err) == (2, True), misplaced.err
    nowhere = elsewise("--connect", server.base_url, "sessions", "list")
    assert (nowhere.code, "leave it out, or the command sessions" in nowhere.err) == (2, True), nowhere.err
    opened: list[str] = []

    def open_window(_data: object, model: str, *_arguments: object, **_named: object) -> int:
        opened.append(model)
        return 0

    monkeypatch.setattr(app.window, "open_window", open_window)
    assert elsewise("--connect", server.base_url, "--model", "tiny").code == 0
    assert elsewise("--connect", server.base_url).code == 0
    assert elsewise("--connect", server.base_url, "window").code == 0
    assert opened == [f"{server.base_url}#tiny", server.base_url, server.base_url]
    assert "unencrypted" in elsewise("--connect", "http://example.com").err
    # a host that was confirmed once, by a saved connection, needs no further confirmation
    keep_connection(Connection("plain", "http://example.com", plain_http=True))
    assert elsewise("--connect", "http://example.com/v1").code == 0
    assert opened[3:] == ["http://example.com"]
    assert "unencrypted" in elsewise("--connect", "http://example.org").err


def test_a_connection_by_name(elsewise: Elsewise, server: Server, tmp_path: Path) -> None:
    folder = str(tokenizer_folder(tmp_path / "tokenizer"))
    made = elsewise("models", "connect", "far", server.base_url, "--tokenizer", folder)
    assert made.code == 0, made.err
    assert "vllm 0.32.0" in made.out
    assert "far: the model at " + server.base_url in elsewise("models", "list").out
    assert elsewise("ask", "Hi", "--model", "far", "--max-tokens", "2").code == 0
    kept = tmp_path / "models" / "connections.json"
    assert KEY not in kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert "removed, with its key" in elsewise("models", "remove", "far").out
    assert elsewise("models", "list").out == ""


def test_a_key_is_prompted_for_and_stored_only_in_the_keychain(
    elsewise: Elsewise, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.delenv("ELSEWISE_API_KEY")
    folder = str(tokenizer_folder(tmp_path / "tokenizer"))
    connecting = ("--verbose", "models", "connect", "far", server.base_url, "--tokenizer", folder, "--key")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{KEY}\n"))
    nowhere = elsewise(*connecting)  # no keychain: nothing is stored, and another way is named
    assert (nowhere.code, "ELSEWISE_API_KEY" in nowhere.err) == (1, True), nowhere.err
    assert elsewise("models", "list").out == ""
    before, keychain = keyring.get_keyring(), Keychain()
    keyring.set_keyring(keychain)
    try:
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{KEY}\n"))
        made = elsewise(*connecting)
        assert made.code == 0, made.err
        assert "the key is stored in" in made.out
        assert list(keychain.kept.values()) == [KEY]
        asked = elsewise("--verbose", "ask", "Hi", "--model", "far", "--max-tokens", "2")
        assert asked.code == 0, asked.err
        assert server.seen[-1][1]["authorization"] == f"Bearer {KEY}"
        assert elsewise("models", "remove", "far").code == 0
        assert not keychain.kept
    finally:
        keyring.set_keyring(before)
    assert KEY not in "".join(each for done in (nowhere, made, asked) for each in (done.out, done.err)) + caplog.text
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]


def test_the_key_of_one_host_is_not_sent_to_another(
    elsewise: Elsewise, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELSEWISE_API_HOST", "example.org")
    done = elsewise("ask", "Hi", "--connect", server.base_url)
    assert (done.code, "refuses the key" in done.err) == (1, True), done.err
    assert server.seen
    assert not any("authorization" in headers for _, headers, _ in server.seen)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--connect", "http://example.com"), 1, "unencrypted"),
        (("--connect", "http://127.0.0.1:9"), 1, "no connection"),
        (("--plain-http",), 2, "goes with --connect"),
    ],
)
def test_refusals(elsewise: Elsewise, options: tuple[str, ...], code: int, said: str) -> None:
    done = elsewise("ask", "Hi", *options)
    assert (done.code, said in done.err) == (code, True), done.err
