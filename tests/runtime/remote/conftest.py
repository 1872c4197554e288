"""A toy model, its tokenizer as a folder, and a server for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime import LanguageModel, connect, load
from tests.runtime.remote.servers import Server, serving, tokenizer_folder


@pytest.fixture(scope="session")
def model() -> Iterator[LanguageModel]:
    with load("mock", backend="mock") as made:
        yield made


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer_folder(tmp_path_factory.mktemp("text") / "tokenizer")


@pytest.fixture(scope="session")
def local() -> Iterator[LanguageModel]:
    """The local model whose numbers a real server's are compared with."""
    with load("smollm2", backend="hf", dtype="float32") as made:
        yield made


@pytest.fixture
def server(model: LanguageModel) -> Iterator[Server]:
    with serving(model) as made:
        yield made


@pytest.fixture(params=["local", "server"])
def remote(server: Server, folder: Path, request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    """A connection with the tokenizer of this machine, and one with the server's."""
    with connect(server.base_url, tokenizer=folder if request.param == "local" else "server") as made:
        yield made
