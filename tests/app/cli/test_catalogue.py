"""`elsewise models catalogue`, `search`, `login` and `logout`: models that can be fetched, and access to them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest

from runtime import catalogue
from tests.app.cli.conftest import Elsewise
from tests.runtime.hub.conftest import Keychain
from tests.runtime.hub.local_hub import Files, LocalHub, running
from tests.tiny_models import tiny_path

SECRET = "hf_aVerySecretToken"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with running() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        yield server


@pytest.fixture
def keychain() -> Iterator[Keychain]:
    before, own = keyring.get_keyring(), Keychain()
    keyring.set_keyring(own)
    yield own
    keyring.set_keyring(before)


@pytest.fixture
def tiny() -> Files:
    return {path.name: path.read_bytes() for path in tiny_path("llama").iterdir() if path.is_file()}


def test_the_catalogue_marks_models_that_fit(elsewise: Elsewise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.socket.connect", None)  # no request goes to the hub
    done = elsewise("models", "catalogue")
    assert done.code == 0
    rows = done.out.splitlines()
    assert len(rows) == 1 + len(catalogue())
    for row, model in zip(rows[1:], catalogue(), strict=True):
        assert row.startswith(model.name)
        assert model.variant().source in row
        assert ("fit" in row) is not ("too large" in row)
    assert "elsewise models fetch ORG/NAME" in done.err


def test_json_holds_the_same_as_the_table(elsewise: Elsewise) -> None:
    done = elsewise("models", "catalogue", "--json", "--context", "1000")
    told = [json.loads(line) for line in done.out.splitlines()]
    assert [entry["name"] for entry in told] == [model.name for model in catalogue()]
    first = told[0]
    assert first["fit"][0]["context"] == 1000
    assert first["variants"][0]["source"] == first["source"] == catalogue()[0].source


@pytest.mark.slow
def test_a_search_marks_models_that_run_here(elsewise: Elsewise, hub: LocalHub, tiny: Files) -> None:
    # given
    hub.add("org/tiny", tiny)
    hub.repositories["org/tiny"].told = {"downloads": 1234, "likes": 5, "tags": ["license:mit\x1b[2J"], "gated": "manual"}
    hub.add("org/tiny-gguf", {"tiny.gguf": b"GGUF"})
    # when
    done = elsewise("models", "search", "tiny", "--limit", "5")
    # then
    assert done.code == 0
    _, first, second = done.out.splitlines()
    assert first.split() == ["org/tiny", "-", "plain", "1,234", "5", "-,", "gated", "hf,", "mlx"]
    assert second.split(maxsplit=6)[-1].startswith("no: only GGUF files; download one (tiny.gguf)")
    told = [json.loads(line) for line in elsewise("models", "search", "tiny", "--json").out.splitlines()]
    assert [(entry["source"], entry["runs_here"]) for entry in told] == [("org/tiny", True), ("org/tiny-gguf", False)]


@pytest.mark.slow
def test_a_search_without_results_is_reported(elsewise: Elsewise, hub: LocalHub) -> None:
    done = elsewise("models", "search", "nothing", "like", "it")
    assert (done.code, done.out, done.err) == (0, "", "no model has these words in its name\n")
    assert hub.queries[0]["search"] == ["nothing like it"]


def test_login_stores_a_piped_token_and_logout_removes_it(
    elsewise: Elsewise, hub: LocalHub, keychain: Keychain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{SECRET}\n"))
    done = elsewise("models", "login")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("the token is stored in ")
    assert SECRET not in done.out
    assert list(keychain.kept.values()) == [SECRET]
    assert hub.asked == []  # without --check no request is made
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    done = elsewise("models", "logout")
    assert done.out == "the token is removed from the system keychain\n"
    assert done.err == "note: HF_TOKEN is set and is still used\n"
    assert keychain.kept == {}
    assert elsewise("models", "logout").out == "no token was stored\n"


@pytest.mark.slow
def test_a_token_is_prompted_for_without_echo_and_checked_on_request(
    elsewise: Elsewise, hub: LocalHub, keychain: Keychain, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a terminal
    hub.tokens[SECRET] = "me"
    typed = ["hf_wrong", SECRET]

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("click.termui.hidden_prompt_func", lambda prompt: typed.pop(0))
    # when a token is wrong, it is not stored
    done = elsewise("models", "login", "--check")
    assert (done.code, done.out, keychain.kept) == (1, "", {})
    assert "the hub does not know this token; make one on" in done.err
    # then
    done = elsewise("models", "login", "--check")
    assert done.code == 0
    assert "the token belongs to me" in done.err
    assert list(keychain.kept.values()) == [SECRET]
    assert SECRET not in done.out + done.err
    assert {path for _, path, _ in hub.asked} == {"/api/whoami-v2"}


def test_a_missing_keychain_is_reported_in_one_line_with_the_way_out(
    elsewise: Elsewise, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(SECRET))
    done = elsewise("models", "login")
    assert (done.code, done.out) == (1, "")
    [said] = done.err.splitlines()
    assert "no system keychain" in said
    assert "set `HF_TOKEN` in the environment" in said
    assert SECRET not in said
