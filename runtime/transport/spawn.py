"""`spawn`: from a source to a model in an engine process."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from runtime.aio import Mailbox
from runtime.api.language_model import LanguageModel
from runtime.backends.registry import available_backends, dotted_backends
from runtime.errors import InvalidRequestError
from runtime.loading.progress import LoadProgress, OnLoad
from runtime.options.load import LoadOptions
from runtime.transport.limits import EngineLimits, patient
from runtime.transport.link import EngineLink, end_link
from runtime.transport.messages import Load, Loaded
from runtime.transport.pipe import CallWaiter, PipeTransport
from runtime.transport.waiting import Call, Inbox

DEFAULT_LOADER = "runtime.api.load:load"


async def spawn(
    source: str | Path,
    backend: str | None = "auto",
    *,
    log_path: Path | None = None,
    limits: EngineLimits | None = None,
    loader: str = DEFAULT_LOADER,
    on_progress: OnLoad | None = None,
    **options: Any,
) -> LanguageModel:
    """Loads a model into an engine process of its own and returns when it is ready. Cancelled, it ends the process.

    Args:
        source: A model folder, a GGUF file, an id on the shelf, or "smollm2". A relative path counts from here.
        backend: "auto" (mlx on Apple silicon and for weights that are quantised for it, else hf), "hf", "mlx", "mock", or a
            registered one.
        log_path: Where the engine's warnings and native errors are appended (made with mode 0600); None: our own
            standard error.
        limits: When the engine counts as hung.
        loader: "package.module:callable" that makes the model in the engine process.
        on_progress: Hears how far the weights are, on the caller's loop, before this returns (hf and mlx).
        options: See `LoadOptions`.

    Raises:
        InvalidRequestError: An unknown option, or one that cannot cross a pipe.
        UnknownBackendError, BackendUnavailableError: No such backend; its libraries are missing.
        ModelLoadError: The model is not here (the message has the command that fetches it), incomplete or damaged.
        EngineDiedError: The process ended, or hung, while it loaded.
    """
    if not isinstance(source, str | Path):
        raise InvalidRequestError(f"a {type(source).__name__} cannot be sent to an engine process; load it in this one")
    if loader == DEFAULT_LOADER:
        LoadOptions.from_mapping(options)  # refused here, before a process starts
    if limits is None:
        limits = EngineLimits() if options.get("offload", "none") == "none" else patient(EngineLimits(), str(source))
    name = backend or "auto"

    def make_load() -> Load:
        return Load(str(source), name, options, loader, _backends_to_tell(name), limits.beat_seconds)

    inbox = Inbox(Mailbox(asyncio.get_running_loop()))
    loaded: Call[Loaded] = Call(inbox)

    def tell(progress: LoadProgress) -> None:
        if on_progress is not None:
            inbox.post(partial(_tell, on_progress, progress, loaded))

    link = EngineLink(
        make_load,
        CallWaiter(inbox, loaded),
        threads=options.get("threads"),
        log_path=log_path,
        limits=limits,
        on_load=tell,
    )
    try:
        return LanguageModel(PipeTransport(link, await loaded.answer()))
    except BaseException:  # cancelled too
        await end_link(link, grace=0.0)
        raise


def _tell(on_progress: OnLoad, progress: LoadProgress, loaded: Call[Loaded]) -> None:
    if not loaded.done():  # after the model, or a cancelled wait, nothing is heard
        on_progress(progress)


def _backends_to_tell(chosen: str) -> dict[str, str]:
    """Every backend that another process can import, by name.

    Raises:
        InvalidRequestError: The chosen one was registered as an object that only this process has.
    """
    dotted = dotted_backends()
    if chosen not in dotted and chosen != "auto" and available_backends().get(chosen) is True:
        raise InvalidRequestError(
            f"backend {chosen!r} was registered as an object of this process; register it as 'package.module:function' "
            "so that the engine process can import it"
        )
    return dotted
