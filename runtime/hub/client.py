"""Searches and downloads models by orders to a child process; imports no network library."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import msgspec

from runtime.adapters.folder import ShelvedAdapter, shelf_adapter
from runtime.errors import DownloadError, InvalidRequestError
from runtime.hub.child_protocol import DownloadPlan, DownloadProgress, HubId, HubModel, OnDownload, Order, Reply, RepositoryKind
from runtime.hub.credentials import kept_token
from runtime.hub.partial_downloads import unfinished_downloads
from runtime.loading.child_process import Child
from runtime.loading.model_folder import ModelFolder, open_folder
from runtime.loading.paths import is_adapter, shelf_path
from runtime.loading.progress import ignore_progress

# Other processes are offline by default; this child is not. The other variables limit it to the requested transfers.
_ENVIRONMENT = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}


def plan_download(model: str, progress: OnDownload = ignore_progress) -> DownloadPlan:
    """Plans a download: files, sizes, the commit, received bytes. Fetches configurations only. Blocks.

    Args:
        model: ``org/name``, or ``org/name@revision``.
        progress: Called at least once a second; raising in it stops.

    Raises:
        DownloadError: The model cannot be looked up, or cannot run here.
    """
    order = Order("plan", str(HubId.parse(model)))
    return next(reply.plan for reply in _replies(order, progress) if reply.plan is not None)


def fetch_model(model: str, progress: OnDownload = ignore_progress, *, pause: threading.Event | None = None) -> ModelFolder:
    """Fetches a model from a Hugging Face hub onto the shelf. Blocks, for as long as it takes.

    Three files are fetched side by side. A stopped download is resumed by the next one of the same repository;
    `unfinished_downloads` lists them.

    Args:
        model: ``org/name``, or ``org/name@revision``; its present commit is fetched and becomes part of the id.
        progress: Called at least once a second; raising in it stops the download and keeps received bytes.
        pause: Once set, from any thread, the download stops within a second and keeps received bytes ("paused"). To resume,
            call this again with the same id, or with `Unfinished.source` after a restart of the program.

    Returns:
        The checked model.

    Raises:
        DownloadError: With the cause and the kept bytes; the shelf is unchanged.
        ModelLoadError: The model is installed already, but its files have changed since.
    """
    return open_folder(shelf_path(_fetched(model, "model", progress, pause)), backend="mlx")


def fetch_adapter(
    adapter: str, progress: OnDownload = ignore_progress, *, pause: threading.Event | None = None
) -> ShelvedAdapter:
    """Fetches a LoRA adapter from a Hugging Face hub onto the shelf, as `fetch_model` does a model. Blocks.

    Args:
        adapter: ``org/name``, or ``org/name@revision``; in peft's layout or mlx-lm's.
        progress: As in `fetch_model`.
        pause: As in `fetch_model`.

    Returns:
        The checked adapter; `add_adapter`, `push_lora` and ``--adapter`` take its name, or ``org/name`` alone.

    Raises:
        DownloadError: With the cause and the kept bytes; the shelf is unchanged.
    """
    return shelf_adapter(shelf_path(_fetched(adapter, "adapter", progress, pause)))


def fetch_any(
    repository: str, progress: OnDownload = ignore_progress, *, pause: threading.Event | None = None
) -> ModelFolder | ShelvedAdapter:
    """Fetches a model or an adapter, as `fetch_model` or `fetch_adapter`, by the kind of the repository."""
    folder = shelf_path(_fetched(repository, None, progress, pause))
    return shelf_adapter(folder) if is_adapter(folder) else open_folder(folder, backend="mlx")


def _replies(order: Order, progress: OnDownload = ignore_progress, pause: threading.Event | None = None) -> Iterator[Reply]:
    """Yields a child's replies to an order. It ends by raising, or when the caller stops reading, which ends the child.

    Raises:
        DownloadError: The child reports an error or ends, or `pause` is set ("paused").
    """
    state = DownloadProgress(state="look up")
    progress(state)
    about = order.repository or "the hub"
    encoded = msgspec.json.encode(msgspec.structs.replace(order, token=order.token or kept_token())) + b"\n"
    with Child("runtime.hub.child", environment=_ENVIRONMENT, order=encoded) as child:
        for line in child.lines():
            reply = Reply() if line is None else msgspec.json.decode(line, type=Reply)  # None: a second of silence
            if reply.error:
                raise DownloadError(reply.error, reply.reason, reply.kept)
            state = replace(state, rate=0.0, eta=None) if line is None else reply.progress or state
            progress(state)
            if pause is not None and pause.is_set() and not reply.name:
                break
            yield reply
        else:
            raise DownloadError(f"{about}: the hub's process ended without an answer ({child.last_error()})")
    kept = sum(note.kept for note in unfinished_downloads() if note.repository == order.repository.partition("@")[0])
    raise DownloadError(f"{about}: paused ({kept:,} bytes are kept: the same command goes on with them)", "paused", kept)


def _fetched(repository: str, kind: RepositoryKind | None, progress: OnDownload, pause: threading.Event | None) -> str:
    """Fetches a repository; returns its id on the shelf."""
    order = Order("fetch", str(HubId.parse(repository)), kind)
    return next(reply.name for reply in _replies(order, progress, pause) if reply.name)


MOST_FOUND = 100
_LONGEST_QUERY = 200  # characters


def search_models(query: str, limit: int = 20) -> tuple[HubModel, ...]:
    """Searches text models on the hub, the most downloaded first; one request. Blocks.

    Args:
        query: Words, or a part of a name.
        limit: Number of results at most, from 1 to `MOST_FOUND`.

    Raises:
        InvalidRequestError: The query has no words or too many characters, or the limit is out of range.
        DownloadError: The hub cannot be reached, refuses, is busy, or sends an unreadable answer.
    """
    words = " ".join(query.split())
    if not words or len(words) > _LONGEST_QUERY or not words.isprintable():
        raise InvalidRequestError(f"a search needs words, at most {_LONGEST_QUERY} characters of them")
    if not 1 <= limit <= MOST_FOUND:
        raise InvalidRequestError(f"a search finds from 1 to {MOST_FOUND} models, not {limit}")
    return next(reply.found for reply in _replies(Order("search", query=words, limit=limit)) if reply.found is not None)


def token_owner(token: str = "") -> str:
    """Asks the hub for the owner of a token. Blocks.

    Args:
        token: By default the token of the environment, or the one in the keychain.

    Raises:
        DownloadError: There is no token, the hub does not know it ("denied"), or it cannot be reached.
    """
    return next(reply.name for reply in _replies(Order("whoami", token=token.strip())) if reply.name)
