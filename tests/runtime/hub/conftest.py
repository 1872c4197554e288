from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import huggingface_hub
import keyring
import pytest
from huggingface_hub import constants
from keyring.backend import KeyringBackend

from runtime.errors import DownloadError
from runtime.hub.child_protocol import DownloadProgress, HubId
from runtime.hub.credentials import VARIABLES
from runtime.hub.download import RepositoryDownload
from runtime.hub.responses import limit_answers
from runtime.shelf.model_shelf import ModelShelf
from tests.runtime.hub.local_hub import Files, LocalHub, running
from tests.tiny_models import tiny_path

Fetch = Callable[..., str]


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty models folder for one test."""
    folder = tmp_path / "models"
    monkeypatch.setenv("ELSEWISE_MODELS", str(folder))
    return folder


@pytest.fixture(scope="session")
def client() -> Iterator[None]:
    """huggingface_hub's own client, created once, with the child's limits and without a proxy."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            patch.delenv(name, raising=False)
            patch.delenv(name.lower(), raising=False)
        patch.setattr(ssl, "create_default_context", cache(ssl.create_default_context))  # 30 ms for each client
        huggingface_hub.close_session()
        limit_answers()
        yield
    huggingface_hub.close_session()


@pytest.fixture
def hub(client: None, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """A hub on loopback that child processes use as the only hub."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # set by the hf backend in this process and inherited by child processes
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with running() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        yield server


class Keychain(KeyringBackend):
    """A system keychain for one test."""

    priority = 5

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # keyring's own
        self.kept: dict[tuple[str, str], str] = {}
        self.fault: Exception | None = None

    def _check(self) -> None:
        if self.fault is not None:
            raise self.fault

    def get_password(self, service: str, username: str) -> str | None:
        self._check()
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self._check()
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        self._check()
        del self.kept[service, username]


@pytest.fixture
def keychain(monkeypatch: pytest.MonkeyPatch) -> Iterator[Keychain]:
    """Replaces the missing keychain; removes the token from the environment."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    before, own = keyring.get_keyring(), Keychain()
    keyring.set_keyring(own)
    yield own
    keyring.set_keyring(before)


@pytest.fixture
def tiny() -> Files:
    """The files of a tiny model, and some that a download must leave out."""
    files = {path.name: path.read_bytes() for path in tiny_path("llama").iterdir() if path.is_file()}
    return files | {"README.md": b"# hi", "pytorch_model.bin": b"\x80\x04K\x01.", "modeling_tiny.py": b"raise SystemExit"}


@pytest.fixture
def steps() -> list[DownloadProgress]:
    """The progress reports of a fetch."""
    return []


@pytest.fixture
def waits() -> list[float]:
    """The waits of a fetch in seconds; they are recorded, not slept."""
    return []


@pytest.fixture
def fetch(hub: LocalHub, steps: list[DownloadProgress], waits: list[float]) -> Fetch:
    """Fetches in this process, with the code that the child runs."""

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    def run(model: str = "org/tiny") -> str:
        return RepositoryDownload(HubId.parse(model), steps.append, endpoint=hub.address, sleep=sleep).fetch()

    return run


def failed(fetch: Fetch, model: str = "org/tiny") -> DownloadError:
    """Expects a fetch to fail, and checks that no incomplete model is listed."""
    with pytest.raises(DownloadError) as raised:
        fetch(model)
    assert ModelShelf().models() == []
    assert "\n" not in str(raised.value)
    return raised.value
