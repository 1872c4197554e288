"""`load`: from a source to a model in this process."""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from runtime.adapters.folder import is_on_shelf, read_header
from runtime.adapters.layouts import AdapterHeader
from runtime.adapters.matching import check_base
from runtime.adapters.registry import Registry
from runtime.adapters.uses import check_adapters
from runtime.api.language_model import LanguageModel
from runtime.api.progress import ShowProgress, reporting_load
from runtime.backends import facts
from runtime.backends.byte_text import own_text
from runtime.backends.packs.packed import Backend
from runtime.backends.registry import brings_text, check_backend, resolve_backend
from runtime.backends.selftest import UnprovenError
from runtime.engine.owner import Engine
from runtime.engine.text_side import TextSide
from runtime.errors import BackendUnavailableError, InvalidRequestError, ModelLoadError, UnsupportedFeatureError
from runtime.loading.config import token_paths
from runtime.loading.model_folder import ModelFolder, library_faults
from runtime.loading.paths import is_model_id
from runtime.loading.progress import LoadProgress, OnLoad, current_listener, progress_listener
from runtime.memory import paused_collection
from runtime.options.checking import shown
from runtime.options.load import LoadOptions
from runtime.scheduler.decode.draft import check_draft
from runtime.scheduler.loop import Scheduler
from runtime.shelf.model_lock import lock_model
from runtime.shelf.source import only_for_mlx, resolve
from runtime.transport.local import LocalTransport

Pair = tuple[Any, Any]  # (model, tokenizer) of transformers or mlx_lm
_BACKENDS = {"torch": "hf", "mlx": "mlx"}  # by the library of a ready model


def load(
    source: str | Path | Pair,
    backend: str | None = "auto",
    *,
    progress: ShowProgress = False,
    on_progress: OnLoad | None = None,
    **options: Any,
) -> LanguageModel:
    """Loads a model into this process and returns when it is ready.

    Args:
        source: A model folder, a GGUF file, an id on the shelf, "smollm2", or a ready (model, tokenizer) pair.
        backend: "auto" (mlx on Apple silicon, without torch, for weights quantised for it; else hf), "hf", "mlx", "mock", or a
            registered one.
        progress: True draws a tqdm bar; a callable gets the number of tensors in place and the total (hf and mlx).
        on_progress: Called with the progress of the weights, on another thread (hf and mlx); before that, on the caller's
            thread, with the progress of the import of a GGUF file.
        options: See `LoadOptions`.

    Raises:
        InvalidRequestError: An unknown option.
        UnknownBackendError, BackendUnavailableError: No such backend; its libraries are missing.
        ModelLoadError: The model is not on this machine (the message has the command that fetches it), incomplete or damaged.
        AdapterError: One of `adapters` is not on this machine, damaged, or for another base.
    """
    checked = LoadOptions.from_mapping(options)
    with reporting_load(progress, on_progress or current_listener()) as on_load, paused_collection() as collect:
        return _load(source, backend, checked, on_load, collect)


def _load(
    source: str | Path | Pair,
    backend: str | None,
    checked: LoadOptions,
    on_load: OnLoad | None,
    collect: Callable[[], object],
) -> LanguageModel:
    with progress_listener(on_load):  # a GGUF file is imported first
        found = _find(source, backend, checked)
    name, model, text = found.backend, found.model, found.text
    folders = [folder for folder in (model, found.drafting) if isinstance(folder, ModelFolder)]
    locks = [lock_model(folder.path) for folder in folders]  # prevents their removal from the shelf

    def make(check: Callable[[], None]) -> tuple[Backend, Scheduler]:
        def tell(progress: LoadProgress) -> None:
            check()
            if on_load is not None:
                on_load(progress)

        try:
            with progress_listener(tell), _as_ours(model, name):
                made = chosen(model, checked)
        except UnprovenError as fault:
            if not isinstance(model, ModelFolder):
                raise
            raise ModelLoadError(f"{fault} ({model.path}/config.json: {token_paths(model.config)})") from fault
        finally:
            _leave_exit_status()
        token_bytes = text.tokenizer.byte_vocab(made.info.vocab_size)
        draft = None if found.drafting is None else load_draft(found.drafting, name, checked, made, token_bytes)
        budget = facts.kv_budget(checked, made.free_bytes())
        made.set_kv_budget(budget)
        eos = frozenset(text.eos_token_ids)
        scheduler = Scheduler(made, checked, budget, token_bytes, eos, draft)
        collect()  # on this thread, which must destroy the arrays that the load leaves
        return made, scheduler

    try:
        chosen = resolve_backend(name)  # on this thread: at exit mlx clears compilations on the thread that imported it
        loaded = LanguageModel(LocalTransport(Engine(make), text, checked, found.names, locks))
    except BaseException:
        for each in locks:
            each.release()
        if text.template is not None:
            text.template.close()
        raise
    try:
        for path, scale in found.adapters:
            loaded.push_lora(path, scale)
    except BaseException:
        loaded.close()
        raise
    try:
        return loaded
    finally:
        del loaded  # libraries keep the frames of their import, which refer to these variables: the model would never be freed


def check_model(source: str | Path, backend: str | None = "auto", **options: Any) -> bool:
    """Makes the checks of `load` that need no weights, and raises their errors. Blocks as long as these take in `load`.

    Returns:
        Whether the model has a chat template.
    """
    text = _find(source, backend, LoadOptions.from_mapping(options)).text
    if text.template is None:
        return False
    text.template.close()
    return True


class _Found(NamedTuple):
    """The model to load, checked as far as its files allow without reading weights."""

    backend: str
    model: ModelFolder | Pair
    text: TextSide
    names: tuple[str, ...] | None  # None: the backend brings its own model
    drafting: ModelFolder | None
    adapters: tuple[tuple[str, float], ...]


def _find(source: str | Path | Pair, backend: str | None, options: LoadOptions) -> _Found:
    library = _library_of(source)
    adapters = check_adapters(options.adapters)
    headers = [_header(path) for path, _ in adapters]  # before anything is loaded, so that a faulty one is refused at once
    name = _backend_for(source, backend, library)
    model: ModelFolder | Pair
    if brings_text(name):
        model, text = (source if isinstance(source, tuple) else (None, None)), TextSide.from_parts(*own_text())
    elif isinstance(source, tuple):
        model, text = source, TextSide.from_transformers(*source)
    else:
        model = resolve(
            source, backend=name, fits=partial(_check_memory, name, options)
        )  # before the libraries are imported, so that a missing model is refused at once
        text = TextSide.from_folder(model)
    names = None if brings_text(name) else names_of(source, model)
    for header in headers:
        check_base(header, names or ())
    drafting = None
    if options.draft_model is not None:
        if brings_text(name):
            raise UnsupportedFeatureError(f"backend {name!r} has one made-up model and takes no draft_model")
        drafting = resolve(options.draft_model, backend=name)
    return _Found(name, model, text.with_format(options), names, drafting, adapters)


def _check_memory(backend: str, options: LoadOptions, weights: int) -> None:
    """Refuses weights that are larger than this machine's memory, before they are read.

    Args:
        backend: The model's backend.
        options: `offload` and fewer bits allow larger weights; so does a GPU, which has memory of its own.
        weights: Bytes of the weights, as stored.
    """
    memory = psutil.virtual_memory().total
    if weights <= memory or options.offload != "none" or options.weights in ("int8", "int4"):
        return
    ways = "choose a smaller or a quantised one"
    if backend == "hf":
        if options.device != "cpu":
            import torch  # only for a model that is larger than the memory

            if torch.cuda.is_available():
                return
        ways += ", or let most of it stay on the disk: offload='disk'"
    raise ModelLoadError(
        f"this model's weights take {weights / 1e9:,.1f} GB, this machine has {memory / 1e9:,.1f} GB of memory: {ways}"
    )


def _leave_exit_status() -> None:
    """Removes an exit hook of torch that would log nothing, but imports a module, which loses the exit status of Ctrl-C (-2).

    Both backends import torch: hf to compute, mlx through transformers, for model configurations.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None and not dynamo.log.isEnabledFor(logging.INFO):
        atexit.unregister(dynamo.dump_compile_times)


def _header(adapter: str) -> AdapterHeader:
    """The header of an adapter, given as an id on the shelf or as a folder.

    Raises:
        AdapterError: There is no such adapter, or it cannot be used.
    """
    if is_model_id(adapter) and not is_on_shelf(adapter) and not Path(adapter).exists():
        Registry("", 0).find(adapter)  # raises, with the nearest names
    return read_header(adapter)


def _library_of(source: object) -> str | None:
    """The library of a ready model, by its class: "torch", "mlx" or "" (another); None for a name, a folder or a file.

    Raises:
        InvalidRequestError: `source` is neither a name nor a pair of a model and its tokenizer.
    """
    if isinstance(source, str | Path):
        return None
    if not isinstance(source, tuple) or len(source) != 2:
        ways = "a folder, a GGUF file, a name on the shelf, or a ready (model, tokenizer) pair"
        raise InvalidRequestError(
            f"a model is {ways}, not {f'{len(source)} things' if isinstance(source, tuple) else shown(source)}"
        )
    tops = {kind.__module__.partition(".")[0] for kind in type(source[0]).__mro__}
    if "torch" in tops:
        return "torch" if hasattr(source[0], "config") else ""
    return "mlx" if "mlx" in tops else ""


def _backend_for(source: str | Path | Pair, asked: str | None, library: str | None) -> str:
    """The backend to use. "auto" selects mlx for weights that only mlx can read, and the library of a ready model.

    Raises:
        InvalidRequestError: A ready model of another library.
        UnknownBackendError, BackendUnavailableError: No such backend; its libraries are missing.
    """
    if isinstance(source, tuple):
        name = check_backend(_BACKENDS.get(library or "", asked) if asked in (None, "auto") else asked)
        wanted = {runs: known for known, runs in _BACKENDS.items()}.get(name, library or "")
        if wanted != library:
            takes = {"torch": "a transformers model", "mlx": "a model of mlx_lm"}[wanted]
            way = f"; load it with backend={_BACKENDS[library]!r}" if library else ""
            kind = type(source[0]).__name__
            raise InvalidRequestError(f"backend={name!r} takes {takes} and its tokenizer, not a {kind}{way}")
        return name
    if asked not in (None, "auto") or not only_for_mlx(source):
        return check_backend(asked)
    try:
        return check_backend("mlx")
    except BackendUnavailableError as fault:
        raise BackendUnavailableError(f"{source} is quantised for MLX, and no other engine can read it: {fault}") from fault


def _as_ours(model: ModelFolder | Pair, backend: str) -> AbstractContextManager[None]:
    """Converts a library's errors about a folder into `ModelLoadError`; errors of other backends stay as they are."""
    library = {"hf": "transformers", "mlx": "mlx-lm"}.get(backend)
    return library_faults(model, library) if library and isinstance(model, ModelFolder) else nullcontext()


def names_of(source: object, model: ModelFolder | Pair) -> tuple[str, ...]:
    """The names of a model: its folder's, the id it was requested by, and the origin in its config."""
    names: list[object]
    if isinstance(model, ModelFolder):
        names = [model.name, model.path.name, source, model.config.get("_name_or_path")]
    else:
        names = [getattr(model[0], "name_or_path", None)]
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name))


def load_draft(
    source: ModelFolder, backend: str, options: LoadOptions, model: Backend, token_bytes: Sequence[bytes]
) -> Backend:
    """Loads the draft model on the owner thread, beside the model that it drafts for; unloads both if they do not match."""
    threads = options.threads or model.info.options.get("threads")  # the library has one thread count for both
    plain = LoadOptions(device=options.device, dtype=options.dtype, threads=threads)
    draft: Backend | None = None
    try:
        with _as_ours(source, backend):
            draft = resolve_backend(backend)(source, plain)
        own_bytes = TextSide.from_folder(source).tokenizer.byte_vocab(draft.info.vocab_size)
        check_draft(draft, model, own_bytes, token_bytes)
        draft.set_kv_budget(0)  # its KV counts against the budget of `model`
    except BaseException:
        for each in (draft, model):
            if each is not None:
                each.unload()
        raise
    return draft
