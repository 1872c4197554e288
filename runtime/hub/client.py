"""Questions and downloads, asked of the child process. Nothing here imports a network library."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import msgspec

from runtime.adapters.folder import ShelvedAdapter, shelf_adapter
from runtime.errors import DownloadError, InvalidRequestError
from runtime.hub.child_protocol import DownloadPlan, DownloadProgress, HubId, HubModel, Kind, OnDownload, Order, Reply
from runtime.hub.credentials import kept_token
from runtime.hub.partial_downloads import unfinished_downloads
from runtime.loading.child_process import Child
from runtime.loading.model_folder import ModelFolder, open_folder
from runtime.loading.paths import is_adapter, shelf_path

# Our processes are offline by default; whoever comes here asked for the network. The rest keeps it to what was asked for.
_ENVIRONMENT = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}


def ignore(progress: DownloadProgress) -> None:
    """For callers who do not want to know."""
    del progress


def plan_download(model: str, progress: OnDownload = ignore) -> DownloadPlan:
    """What fetching a model or an adapter would mean: files, sizes, the commit, what is here. Blocks.

    Only configuration is fetched for it.

    Args:
        model: ``org/name``, or ``org/name@revision``.
        progress: Called at least once a second; raising in it stops.

    Raises:
        DownloadError: It cannot be looked up, or is nothing that Elsewise runs.
    """
    for said in answers(Order("plan", str(HubId.parse(model))), progress):
        if said.plan is not None:
            return said.plan
    raise DownloadError(f"{model}: the download ended without an answer")


def fetch_model(model: str, progress: OnDownload = ignore, *, pause: threading.Event | None = None) -> ModelFolder:
    """Fetches a model from a Hugging Face hub onto the shelf. Blocks, for as long as it takes.

    Several files come side by side: each report of its progress is of one of them, and of all together. A download that stops,
    for whatever reason, is gone on with by the next one of the same repository; `unfinished_downloads` names those.

    Args:
        model: ``org/name``, or ``org/name@revision``; the commit that this is now is what is fetched, and part of the name.
        progress: Called at least once a second; raising in it stops the download, and what has arrived is kept.
        pause: Once set, from any thread, the download stops within a second and what has arrived is kept ("paused"). To resume,
            call this again: with the same id, or with `Unfinished.source` after a restart of the program.

    Returns:
        The model, checked.

    Raises:
        DownloadError: With the cause, and what was kept; nothing is on the shelf then that was not there before.
        ModelLoadError: It is there, but was changed since.
    """
    return open_folder(shelf_path(_fetched(model, "model", progress, pause)), backend="mlx")


def fetch_adapter(adapter: str, progress: OnDownload = ignore, *, pause: threading.Event | None = None) -> ShelvedAdapter:
    """Fetches a LoRA adapter from a Hugging Face hub onto the shelf, as `fetch_model` does a model. Blocks.

    Args:
        adapter: ``org/name``, or ``org/name@revision``; in peft's layout or mlx-lm's.
        progress: Called at least once a second; raising in it stops the download, and what has arrived is kept.
        pause: As `fetch_model` has it.

    Returns:
        The adapter, checked: `add_adapter`, `push_lora` and ``--adapter`` take its name, and ``org/name`` alone.

    Raises:
        DownloadError: With the cause, and what was kept; nothing is on the shelf then that was not there before.
    """
    return shelf_adapter(shelf_path(_fetched(adapter, "adapter", progress, pause)))


def fetch_any(
    repository: str, progress: OnDownload = ignore, *, pause: threading.Event | None = None
) -> ModelFolder | ShelvedAdapter:
    """`fetch_model` or `fetch_adapter`, whichever it is."""
    folder = shelf_path(_fetched(repository, None, progress, pause))
    return shelf_adapter(folder) if is_adapter(folder) else open_folder(folder, backend="mlx")


def answers(asked: Order, progress: OnDownload = ignore, pause: threading.Event | None = None) -> Iterator[Reply]:
    """What a child says to an order.

    Raises:
        DownloadError: What it could not do; or `pause` was set ("paused").
    """
    state = DownloadProgress(state="look up")
    progress(state)
    about = asked.repository or "the hub"
    order = msgspec.json.encode(msgspec.structs.replace(asked, token=asked.token or kept_token())) + b"\n"
    with Child("runtime.hub.child", environment=_ENVIRONMENT, order=order) as child:
        for line in child.lines():
            said = Reply() if line is None else msgspec.json.decode(line, type=Reply)  # None: nothing has come for a while
            if said.error:
                raise DownloadError(said.error, said.reason, said.kept)
            state = replace(state, rate=0.0, eta=None) if line is None else said.progress or state
            progress(state)
            if pause is not None and pause.is_set() and not said.name:
                break
            yield said
        else:
            raise DownloadError(f"{about}: the hub's process ended without an answer ({child.last_words()})")
    kept = sum(note.kept for note in unfinished_downloads() if note.repository == asked.repository.partition("@")[0])
    raise DownloadError(f"{about}: paused ({kept:,} bytes are kept: the same command goes on with them)", "paused", kept)


def _fetched(repository: str, kind: Kind | None, progress: OnDownload, pause: threading.Event | None) -> str:
    """Fetches it; its name on the shelf."""
    for said in answers(Order("fetch", str(HubId.parse(repository)), kind), progress, pause):
        if said.name:
            return said.name
    raise DownloadError(f"{repository}: the download ended without an answer")


MOST_FOUND = 100
_LONGEST_QUERY = 200  # characters


def search_models(query: str, limit: int = 20) -> tuple[HubModel, ...]:
    """Text models that the hub finds, the most fetched first. One question, when it is called and never else. Blocks.

    Args:
        query: Words, or a part of a name.
        limit: Of them, at most; from 1 to `MOST_FOUND`.

    Raises:
        InvalidRequestError: No words, too long ones, or no such limit.
        DownloadError: No network, a hub that refuses, is busy, or answers what nobody can read.
    """
    words = " ".join(query.split())
    if not words or len(words) > _LONGEST_QUERY or not words.isprintable():
        raise InvalidRequestError(f"a search needs words, at most {_LONGEST_QUERY} characters of them")
    if not 1 <= limit <= MOST_FOUND:
        raise InvalidRequestError(f"a search finds from 1 to {MOST_FOUND} models, not {limit}")
    for said in answers(Order("search", query=words, limit=limit)):
        if said.found is not None:
            return said.found
    raise DownloadError("the search ended without an answer")


def token_owner(token: str = "") -> str:
    """Asks the hub whose a token is. Blocks.

    Args:
        token: The one that is kept, or that of the environment, by default.

    Raises:
        DownloadError: There is none, the hub does not know it ("denied"), or it cannot be asked.
    """
    for said in answers(Order("who", token=token.strip())):
        if said.name:
            return said.name
    raise DownloadError("the hub gave no answer")
