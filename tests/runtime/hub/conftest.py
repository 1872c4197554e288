from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from runtime.errors import DownloadError
from runtime.hub.downloading import Download
from runtime.hub.plan import DownloadProgress, HubId
from runtime.loading.shelf import ModelShelf
from tests.runtime.hub.local_hub import Files, LocalHub, running
from tests.tiny_models import tiny_path

Fetch = Callable[..., str]


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty models folder of the test's own."""
    folder = tmp_path / "models"
    monkeypatch.setenv("ELSEWISE_MODELS", str(folder))
    return folder


@pytest.fixture(scope="session")
def client() -> Iterator[None]:
    """huggingface_hub's own client, made once and without a proxy."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            patch.delenv(name, raising=False)
            patch.delenv(name.lower(), raising=False)
        huggingface_hub.close_session()
        huggingface_hub.get_session()
    yield
    huggingface_hub.close_session()


@pytest.fixture
def hub(client: None, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """A hub on loopback, which children take for the only one."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with running() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        yield server


@pytest.fixture
def tiny() -> Files:
    """The files of a tiny model, and some that nobody should take."""
    files = {path.name: path.read_bytes() for path in tiny_path("llama").iterdir() if path.is_file()}
    return files | {"README.md": b"# hi", "pytorch_model.bin": b"\x80\x04K\x01.", "modeling_tiny.py": b"raise SystemExit"}


@pytest.fixture
def steps() -> list[DownloadProgress]:
    """What a fetch told."""
    return []


@pytest.fixture
def waits() -> list[float]:
    """How long a fetch waited, in seconds; it did not really."""
    return []


@pytest.fixture
def fetch(hub: LocalHub, steps: list[DownloadProgress], waits: list[float]) -> Fetch:
    """Fetches in this process, as the child does."""

    def run(model: str = "org/tiny") -> str:
        return Download(HubId.parse(model), steps.append, endpoint=hub.address, sleep=waits.append).fetch()

    return run


def failed(fetch: Fetch, model: str = "org/tiny") -> DownloadError:
    """Fetches in vain, and looks that nothing half-installed is listed."""
    with pytest.raises(DownloadError) as raised:
        fetch(model)
    assert ModelShelf().models() == []
    assert "\n" not in str(raised.value)
    return raised.value
