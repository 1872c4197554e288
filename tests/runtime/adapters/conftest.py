"""Adapters of the tiny models, written once per test run, and those of the fake backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime import LanguageModel, load
from runtime.backends.fake import Behaviour
from tests.fakes import Gate, fake_model
from tests.runtime.adapters.makers import INVOCATION, Peft, adapters_of, save_adapter
from tests.runtime.adapters.toys import INVOCATION as TOY_INVOCATION
from tests.runtime.adapters.toys import toy_adapter
from tests.tiny_models import tiny_path


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for the adapters."""
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="session")
def folders(root: Path) -> dict[str, Path]:
    """Adapters for the tiny llama: A, B, and one that is activated by `INVOCATION`."""
    a, b = adapters_of("llama", root)
    return {"A": a, "B": b, "act": save_adapter(root / "llama" / "act", "llama", seed=3, alora_invocation_tokens=INVOCATION)}


@pytest.fixture(scope="session")
def peft(folders: dict[str, Path]) -> Peft:
    """peft's numbers for these adapters."""
    return Peft("llama", **folders)


@pytest.fixture
def llama(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Iterator[LanguageModel]:
    """The tiny llama with its adapters loaded; on hf, or as the test is parametrised."""
    with load(tiny_path("llama"), backend=getattr(request, "param", "hf")) as model:
        for folder in folders.values():
            model.load_adapter(model.add_adapter(folder))
        yield model


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("toys")
    return {
        "A": toy_adapter(root / "A", 1),
        "B": toy_adapter(root / "B", 2),
        "act": toy_adapter(root / "act", 3, invocation=TOY_INVOCATION),
    }


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture(params=["attention", "recurrent"])
def model(request: pytest.FixtureRequest, toys: dict[str, Path], gate: Gate) -> Iterator[LanguageModel]:
    with fake_model(Behaviour(before_forward=gate, recurrent=request.param == "recurrent")) as made:
        for name, folder in toys.items():
            if request.param == "attention" or name != "act":
                made.load_adapter(made.add_adapter(folder))
        yield made
        gate.open()


both_backends = pytest.mark.parametrize("llama", ["hf", "mlx"], indirect=True)
