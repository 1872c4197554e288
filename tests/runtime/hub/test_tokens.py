"""The token for private models: kept in a keychain, sent to its hub alone, and never shown."""

from __future__ import annotations

import io
import os
from contextlib import suppress

import keyring
import msgspec
import psutil
import pytest
from keyring.backends.null import Keyring as Null
from keyring.errors import KeyringLocked, PasswordSetError

from runtime import (
    DownloadError,
    DownloadProgress,
    InvalidRequestError,
    KeychainError,
    fetch_model,
    forget_token,
    is_token_kept,
    keep_token,
    plan_download,
    token_in_environment,
    token_owner,
)
from runtime.hub import child
from runtime.hub.child_protocol import Order
from runtime.hub.credentials import forget_key, keep_key, kept_key
from runtime.hub.responses import token_to_send
from runtime.hub.search import owner_of_token
from tests.runtime.hub.conftest import Keychain
from tests.runtime.hub.local_hub import Files, LocalHub, Request, once

SECRET = "hf_aVerySecretToken"


@pytest.fixture
def private(hub: LocalHub, keychain: Keychain, tiny: Files) -> LocalHub:
    """A hub with a repository that only one user may read."""
    hub.add("me/tiny", tiny)
    hub.repositories["me/tiny"].owner = "me"
    hub.tokens[SECRET] = "me"
    return hub


@pytest.mark.slow
def test_a_token_is_kept_used_and_forgotten(private: LocalHub, keychain: Keychain) -> None:
    # given no login
    assert not is_token_kept()
    with pytest.raises(DownloadError, match="no such repository, or a private one: log in with `elsewise models login`"):
        plan_download("me/tiny")
    # when
    keep_token(f"  {SECRET}\n")
    # then
    assert is_token_kept()
    assert keychain.kept == {("elsewise", private.address): SECRET}
    assert plan_download("me/tiny").name.startswith("me/tiny@")
    # and when it is forgotten
    assert (forget_token(), forget_token(), is_token_kept()) == (True, False, False)


@pytest.mark.slow
def test_a_token_is_kept_for_one_hub_and_not_sent_to_another(
    private: LocalHub, keychain: Keychain, monkeypatch: pytest.MonkeyPatch
) -> None:
    keychain.kept["elsewise", "https://huggingface.co"] = SECRET
    sent: list[str | None] = []
    private.before = [lambda request: bool(sent.append(request.handler.headers.get("Authorization")))]  # type: ignore[func-returns-value]  # noted in passing
    with pytest.raises(DownloadError, match="private"):
        plan_download("me/tiny")
    assert sent == [None]
    monkeypatch.delenv("HF_ENDPOINT")
    assert is_token_kept()


@pytest.mark.slow
def test_the_token_of_the_environment_takes_precedence(
    private: LocalHub, keychain: Keychain, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_token("hf_old")
    monkeypatch.setenv("HF_TOKEN", SECRET)
    assert token_in_environment() == "HF_TOKEN"
    assert token_owner() == "me"


@pytest.mark.slow
def test_a_token_unknown_to_the_hub_is_refused_and_not_kept(private: LocalHub) -> None:
    page = f"{private.address}/settings/tokens"
    with pytest.raises(DownloadError, match=f"the hub does not know this token; make one on {page}") as fault:
        owner_of_token("hf_wrong", lambda seconds, why: None, endpoint=private.address)
    assert fault.value.reason == "denied"
    with pytest.raises(DownloadError, match="no token is kept; keep one with `elsewise models login`"):
        owner_of_token("", lambda seconds, why: None)
    assert token_owner(SECRET) == "me"
    assert not is_token_kept()  # checking a token does not keep it


@pytest.mark.parametrize("text", ["", "  ", "two words", "two\nlines", "h\u00e9", "\x1b[31m", "x" * 1001])
def test_an_invalid_token_is_neither_kept_nor_shown(text: str, keychain: Keychain) -> None:
    with pytest.raises(InvalidRequestError, match="this is no token") as fault:
        keep_token(text)
    assert not text.strip() or text not in str(fault.value)
    assert keychain.kept == {}


@pytest.mark.slow
def test_the_error_on_a_machine_without_a_keychain_says_what_to_do(keychain: Keychain, hub: LocalHub, tiny: Files) -> None:
    # given keyring finds no keychain, or one that stores nothing
    from keyring.backends.fail import Keyring as Fail

    for none in (Fail(), Null()):  # type: ignore[no-untyped-call]  # keyring's own
        keyring.set_keyring(none)
        for act in (lambda: keep_token(SECRET), forget_token):
            with pytest.raises(KeychainError, match=r"no system keychain .*; start it \(or set `HF_TOKEN` in") as fault:
                act()
            assert SECRET not in str(fault.value)
        assert not is_token_kept()
    # then public repositories are fetched all the same
    hub.add("org/tiny", tiny)
    assert plan_download("org/tiny").repository == "org/tiny"


def test_the_keychain_error_for_a_server_key_names_its_own_variables(keychain: Keychain) -> None:
    server = "https://big.example/v1"
    assert keep_key(server, SECRET) == keychain.name
    assert (kept_key(server), kept_key("https://other.example/v1")) == (SECRET, "")
    forget_key(server)
    assert kept_key(server) == ""
    keyring.set_keyring(Null())  # type: ignore[no-untyped-call]  # keyring's own
    with pytest.raises(
        KeychainError, match=r"keychain .*; start it \(or set `ELSEWISE_API_KEY` and, .* `ELSEWISE_API_"
    ) as fault:
        keep_key(server, SECRET)
    assert SECRET not in str(fault.value)


@pytest.mark.parametrize("kind", [KeyringLocked, PasswordSetError, OSError, ValueError])
def test_a_keychain_that_refuses_is_a_typed_error(kind: type[Exception], keychain: Keychain) -> None:
    keychain.kept["elsewise", "https://huggingface.co"] = SECRET
    keychain.fault = kind(f"no, not {SECRET}")
    with pytest.raises(KeychainError, match=r"the system keychain refuses .*; unlock it \(or set `HF_TOKEN`") as fault:
        keep_token(SECRET)
    assert SECRET not in str(fault.value)
    assert (fault.value.__cause__, fault.value.__suppress_context__) == (None, True)  # a traceback does not show it either
    with pytest.raises(KeychainError):
        forget_token()
    assert not is_token_kept()


@pytest.mark.slow
def test_the_token_is_not_visible_in_the_arguments_environment_or_progress_of_the_child(
    private: LocalHub, keychain: Keychain
) -> None:
    # given a working child
    keep_token(SECRET)
    seen: list[str] = []

    def look(progress: DownloadProgress) -> None:
        for process in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):  # the last report may arrive after the child has ended
                words = process.cmdline()
                if "runtime.hub.child" in words:
                    seen.extend([*words, *process.environ().values(), str(progress)])

    private.before = [once(lambda: bool(seen), lambda _: False)]  # the hub answers after the child was inspected
    # when
    fetch_model("me/tiny", look)
    # then
    assert seen
    assert not any(SECRET in text for text in seen)
    assert SECRET not in repr(Order("fetch", "me/tiny", token=SECRET))


@pytest.mark.slow
def test_a_token_quoted_by_the_hub_is_masked_in_the_error(private: LocalHub, keychain: Keychain, tiny: Files) -> None:
    keep_token(SECRET)

    def quoting(request: Request) -> bool:
        return request.json(200, {"id": "me/tiny", "sha": f"you sent {SECRET}", "siblings": []})

    private.before = [quoting]
    with pytest.raises(DownloadError, match=r"you sent \(token\)") as fault:
        plan_download("me/tiny")
    assert SECRET not in str(fault.value)


@pytest.mark.parametrize("text", ["hf_tok\u00e9n", "hf_tok en", "hf_tok\x7fen", "hf_tok" * 200])
def test_a_token_invalid_in_a_header_is_refused_without_showing_it(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", text)
    with pytest.raises(DownloadError, match="has characters that no token has; log in with") as fault:
        token_to_send("")
    assert fault.value.reason == "denied"
    assert "hf_tok" not in str(fault.value)
    assert token_to_send(SECRET) == SECRET


def test_a_traceback_of_the_child_does_not_show_the_token(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given the child, in this process, with an exception that quotes the token
    def broken(asked: Order, token: str) -> None:
        raise ZeroDivisionError(f"sent {token} to {asked}")

    order = msgspec.json.encode(Order("whoami", token=SECRET)) + b"\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(order)))
    monkeypatch.setattr(child, "end_with_parent", lambda: None)
    monkeypatch.setattr(child, "run_order", broken)
    mask = os.umask(0o022)
    # when
    code = child.main()
    # then
    os.umask(mask)
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert said.err.splitlines()[-1] == "ZeroDivisionError: sent (token) to Order('whoami', '')"
    assert SECRET not in said.err


def test_the_child_ends_when_its_stdin_is_closed_without_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert child.main() == 3
