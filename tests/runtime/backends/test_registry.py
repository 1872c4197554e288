from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.backends.fake import FakeBackend, load
from runtime.backends.registry import (
    ENTRY_POINTS,
    available_backends,
    default_backend,
    dotted_backends,
    register_backend,
    resolve_backend,
    unregister_backend,
)
from runtime.errors import BackendUnavailableError, InvalidRequestError, UnknownBackendError
from runtime.options.load import LoadOptions
from tests.runtime.backends.reference import third_backend


@pytest.fixture
def third() -> Iterator[str]:
    yield "third"
    unregister_backend("third")


def test_built_in_backends_are_listed_without_importing_their_libraries() -> None:
    script = (
        "import sys; from runtime.backends.registry import available_backends; print(sorted(available_backends().items()));"
        "assert not {'torch', 'mlx', 'mlx.core', 'transformers'} & set(sys.modules), sys.modules"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60).stdout
    assert "('fake', True)" in out
    assert "('mock', True)" in out


def test_a_missing_library_is_named_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx_lm", None)  # as if it were not installed
    assert available_backends()["mlx"] == "mlx_lm not installed (`pip install mlx mlx-lm`, on Linux 'mlx[cpu]')"
    with pytest.raises(BackendUnavailableError, match="`pip install mlx mlx-lm`"):
        resolve_backend("mlx")


def test_vllm_as_a_backend_is_refused_with_a_hint_to_connect() -> None:
    with pytest.raises(BackendUnavailableError, match="connected to by its address"):
        resolve_backend("vllm")


def test_an_unknown_name_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownBackendError, match="did you mean 'mock'"):
        resolve_backend("mok")


def test_auto_is_the_default_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert default_backend() == "hf"
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert default_backend() == "mlx"
    monkeypatch.setitem(sys.modules, "mlx_lm", None)
    assert default_backend() == "hf"


def test_auto_is_mlx_where_torch_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert default_backend() == "mlx"
    monkeypatch.setitem(sys.modules, "mlx", None)
    assert default_backend() == "hf"  # whose error then names the missing library


@pytest.mark.parametrize("factory", [third_backend, "tests.runtime.backends.reference:third_backend"])
def test_a_registered_backend_is_known_here_and_by_its_import_name(third: str, factory: Any) -> None:
    register_backend(third, factory)
    assert available_backends()[third] is True
    assert dotted_backends()[third] == "tests.runtime.backends.reference:third_backend"
    assert isinstance(resolve_backend(third)("anything", LoadOptions()), FakeBackend)  # type: ignore[arg-type]  # toys take any source


def test_a_factory_that_cannot_be_imported_again_has_no_import_name(third: str) -> None:
    register_backend(third, lambda source, options: load(source, options))
    assert available_backends()[third] is True
    assert third not in dotted_backends()


def test_a_registered_name_that_cannot_be_imported_is_unavailable(third: str) -> None:
    register_backend(third, "no_such_package_of_ours.backend:load")
    assert available_backends()[third] == "module no_such_package_of_ours.backend is not installed"
    register_backend(third, "runtime.backends.fake:no_such_function")
    with pytest.raises(BackendUnavailableError, match="no_such_function"):
        resolve_backend(third)


@pytest.mark.parametrize(("name", "factory"), [("", load), ("auto", load), ("x", "no-colon"), ("x", 3)])
def test_bad_registrations_are_refused(name: str, factory: Any) -> None:
    with pytest.raises(InvalidRequestError):
        register_backend(name, factory)


def test_entry_points_of_installed_packages_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "plug-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\nplugged = runtime.backends.fake:load\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert available_backends()["plugged"] is True
    assert resolve_backend("plugged") is load
