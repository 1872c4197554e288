"""The known backends, whether they can run here, and the factory behind a name.

A backend is a factory ``(source, options) -> Backend`` with a name and a dotted "module:function", by which another
process can import it. A factory with `own_text` (see `runtime.backends.byte_text`) needs no folder.
Backends come from three places: built in, `register_backend`, and the entry-point group `elsewise.backends`; a
registered name wins over an entry point, both over a built-in one.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import platform
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from runtime.backends.packs.packed import Backend
from runtime.errors import BackendUnavailableError, InvalidRequestError, UnknownBackendError
from runtime.loading.model_folder import ModelFolder
from runtime.options.checking import nearest
from runtime.options.load import LoadOptions

Source = ModelFolder | tuple[Any, Any]
Factory = Callable[[Source, LoadOptions], Backend]

ENTRY_POINTS = "elsewise.backends"


@dataclass(frozen=True, slots=True)
class _BuiltIn:
    dotted: str
    needs: tuple[str, ...] = ()  # top-level modules
    install: str = ""
    own_text: bool = False  # a toy: it brings tokenizer and template, and needs no model folder


_BUILT_IN = {
    "hf": _BuiltIn(
        "runtime.backends.hf.backend:load",
        ("torch", "transformers"),
        "(`make setup`, or `pip install torch==2.13.0 transformers`)",
    ),
    "mlx": _BuiltIn("runtime.backends.mlx.backend:load", ("mlx", "mlx_lm"), "(`pip install mlx mlx-lm`, on Linux 'mlx[cpu]')"),
    "mock": _BuiltIn("runtime.backends.mock:load", own_text=True),
    "fake": _BuiltIn("runtime.backends.fake:load", own_text=True),
}
_REMOTE_ONLY = {
    "vllm": "a vLLM server is connected to by its address: `elsewise ask --connect URL` (or `connect(base_url)`, "
    "`load_model_by_name(name, 'vllm', {'base_url': URL})`); on this machine use hf or mlx"
}

_registered: dict[str, str | Factory] = {}


def register_backend(name: str, factory: str | Factory) -> None:
    """Makes a backend known to `load`, `spawn` and the window under `name`.

    Args:
        name: What users write.
        factory: ``factory(source, options) -> Backend``, or where to import it from: "package.module:function".

    Raises:
        InvalidRequestError: No name, "auto", or neither a callable nor a dotted name.
    """
    if not name or name == "auto":
        raise InvalidRequestError(f"a backend needs a name of its own, not {name!r}")
    if not callable(factory) and not (isinstance(factory, str) and factory.count(":") == 1):
        raise InvalidRequestError(f"backend {name!r}: give a callable or 'module:function', not {factory!r}")
    _registered[name] = factory


def unregister_backend(name: str) -> None:
    """Forgets a registered backend; unknown names are no error."""
    _registered.pop(name, None)


def available_backends() -> dict[str, str | bool]:
    """Every known name: True, or why it cannot run here, with the install line. Imports none of them."""
    answer: dict[str, str | bool] = dict(_REMOTE_ONLY)
    for name, built_in in _BUILT_IN.items():
        missing = _missing(name)
        answer[name] = f"{' and '.join(missing)} not installed {built_in.install}" if missing else True
    for name, dotted in dotted_backends().items():
        if name not in _BUILT_IN:
            answer[name] = _module_is_there(dotted)
    answer |= {name: True for name, factory in _registered.items() if callable(factory)}
    return answer


def dotted_backends() -> dict[str, str]:
    """The import name of every backend that has one: what another process needs to `register_backend` the same."""
    answer = {name: built_in.dotted for name, built_in in _BUILT_IN.items()}
    answer |= _installed(tuple(sys.path))
    for name, factory in _registered.items():
        dotted = factory if isinstance(factory, str) else _dotted(factory)
        if dotted is not None:
            answer[name] = dotted
        else:
            answer.pop(name, None)
    return answer


@cache
def _installed(path: tuple[str, ...]) -> dict[str, str]:
    """The entry points of the packages on `path`; cached, as reading the metadata of all packages takes 20 ms."""
    del path  # only the key of the cache
    return {point.name: point.value for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def default_backend() -> str:
    """The backend of "auto": mlx on Apple silicon or where hf is not installed; hf elsewhere and where mlx is not installed."""
    apple = sys.platform == "darwin" and platform.machine() == "arm64"
    return "mlx" if not _missing("mlx") and (apple or _missing("hf")) else "hf"


def _missing(name: str) -> list[str]:
    """Modules that a built-in backend needs and that are not installed."""
    return [module for module in _BUILT_IN[name].needs if importlib.util.find_spec(module) is None]


def check_backend(name: str | None = None) -> str:
    """The name of a backend that can run here, "auto" resolved; imports none.

    Raises:
        UnknownBackendError, BackendUnavailableError: As `resolve_backend`.
    """
    chosen = default_backend() if name in (None, "auto") else str(name)
    known = available_backends()
    if chosen not in known:
        raise UnknownBackendError(f"unknown backend {chosen!r}: {nearest(chosen, known)}")
    if known[chosen] is not True:
        raise BackendUnavailableError(f"backend {chosen!r} cannot run here: {known[chosen]}")
    return chosen


def brings_text(name: str) -> bool:
    """Whether a backend brings tokenizer and template of its own and needs no model folder; imports nothing."""
    toys = {built_in.dotted for built_in in _BUILT_IN.values() if built_in.own_text}
    return dotted_backends().get(name) in toys  # also under another name


def resolve_backend(name: str | None = None) -> Factory:
    """The factory behind a name; None and "auto" mean `default_backend()`.

    Raises:
        UnknownBackendError: No such backend; the message names the nearest.
        BackendUnavailableError: Known, but it cannot run here; the message has the install line.
    """
    chosen = check_backend(name)
    factory = _registered.get(chosen)
    if callable(factory):
        return factory
    return _imported(chosen, dotted_backends()[chosen])


def _imported(name: str, dotted: str) -> Factory:
    module, _, function = dotted.partition(":")
    with warnings.catch_warnings(), suppress(ImportError):
        warnings.filterwarnings("ignore", "IProgress not found")  # in a notebook without ipywidgets; bars are text there
        importlib.import_module("tqdm.auto")  # the libraries import it
    try:
        factory: Factory = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise BackendUnavailableError(f"backend {name!r} cannot be imported from {dotted}: {error}") from error
    return factory


def _dotted(factory: Factory) -> str | None:
    """The import name of a callable; None for a lambda, a method, or a function of a script."""
    module, qualified = getattr(factory, "__module__", None), getattr(factory, "__qualname__", "<>")
    if module in (None, "__main__") or "<" in qualified or "." in qualified:
        return None
    return f"{module}:{qualified}"


def _module_is_there(dotted: str) -> str | bool:
    module = dotted.partition(":")[0]
    try:
        found = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        found = False
    return found or f"module {module} is not installed"
