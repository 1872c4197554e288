"""Looks up a repository, plans its download, fetches it and installs it on the shelf. In the child process only."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub import get_async_session, hf_hub_url

from runtime.adapters.folder import read_header
from runtime.errors import AdapterError, DownloadError, ModelLoadError
from runtime.hub.child_protocol import DownloadPlan, HubFile, HubId, OnDownload, RepositoryKind, shelf_name
from runtime.hub.download_progress import ProgressReporter
from runtime.hub.install import install_download
from runtime.hub.part_file import FileAddress, PartFile, fetch_part
from runtime.hub.partial_downloads import PartialDownload, kept_bytes
from runtime.hub.repository import (
    Listing,
    adapter_files,
    check_kind,
    check_suitable,
    kind_of,
    look_up,
    small_files,
    weights_to_take,
)
from runtime.hub.responses import page_address, token_to_send
from runtime.loading.config import describe
from runtime.loading.model_folder import INDEX, open_folder, read_json
from runtime.loading.paths import ADAPTER_CONFIG, ensure_models_dir, models_dir, shelf_path
from runtime.version import __version__

AT_ONCE = 3  # files: one connection seldom uses the full bandwidth, and hubs limit the number of connections
_PAUSE_SECONDS = 0.5  # between two reports while waiting
Sleep = Callable[[float], Awaitable[None]]


class Fetcher:
    """Fetches files into a folder, each as ``OID.part``: at most `AT_ONCE` at a time, files of equal content once.

    Args:
        reporter: Receives the bytes of each file.
        endpoint: The hub's address; None: huggingface_hub's choice.
        token: Sent with requests; empty for none.
        sleep: Waits for a number of seconds.
    """

    def __init__(self, reporter: ProgressReporter, endpoint: str | None, token: str, sleep: Sleep) -> None:
        self._reporter = reporter
        self._endpoint = endpoint
        self._sleep = sleep
        # httpx drops the token on a redirect to another host
        self._headers = {"User-Agent": f"elsewise/{__version__}"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def fetch(self, listing: Listing, files: Iterable[HubFile], folder: Path) -> dict[str, str]:
        """Fetches the missing bytes of files and compares their digests with the repository's.

        Returns:
            SHA-256 by name of the file.

        Raises:
            DownloadError: A file could not be fetched. The others are stopped; received bytes are kept.
        """
        return asyncio.run(self._fetch_all(listing, files, folder))

    def wait(self, seconds: float, why: str) -> None:
        """Waits between two requests of a look-up, and reports the reason."""
        asyncio.run(self._wait(seconds, why))

    async def _fetch_all(self, listing: Listing, files: Iterable[HubFile], folder: Path) -> dict[str, str]:
        by_content: dict[str, list[HubFile]] = {}  # files of equal content share a part file
        for file in files:
            by_content.setdefault(file.oid, []).append(file)
        sums: dict[str, str] = {}
        room = asyncio.Semaphore(AT_ONCE)

        async def one(client: httpx2.AsyncClient, files: Sequence[HubFile]) -> None:
            async with room:
                sums.update(dict.fromkeys((file.name for file in files), await self._fetch_one(client, listing, files, folder)))

        async with get_async_session() as client:
            try:
                async with asyncio.TaskGroup() as group:
                    for each in by_content.values():
                        group.create_task(one(client, each))
            except BaseExceptionGroup as faults:  # the first failure stopped all
                raise faults.exceptions[0] from faults.exceptions[0].__cause__
        return sums

    async def _fetch_one(self, client: httpx2.AsyncClient, listing: Listing, files: Sequence[HubFile], folder: Path) -> str:
        """Fetches a file; returns its SHA-256."""
        file, repository = files[0], listing.hub_id.repository
        url = hf_hub_url(repository, file.name, revision=listing.commit, endpoint=self._endpoint)
        address = FileAddress(client, url, page_address(repository, self._endpoint), self._headers)
        with PartFile(folder / f"{file.oid}.part", file) as part:
            self._reporter.check(file, 0)
            for _ in part.read_back():
                self._reporter.check(file, part.done)
                await asyncio.sleep(0)  # hashing a large part takes seconds: other transfers run in between

            def report() -> None:
                self._reporter.fetch(file, part.done)

            async def wait(seconds: float, why: str) -> None:
                await self._wait(seconds, why, file, part)

            await fetch_part(part, file, address, report, wait)
            for each in files:
                self._reporter.end(each)
            return part.sha256

    async def _wait(self, seconds: float, why: str, file: HubFile | None = None, part: PartFile | None = None) -> None:
        while seconds > 0:
            self._reporter.wait(file, part.done if part else 0, why)
            step = min(seconds, _PAUSE_SECONDS)
            await self._sleep(step)
            seconds -= step


_SPARE_BYTES = 256 << 20


class RepositoryDownload:
    """The download of a repository.

    Args:
        hub_id: The repository.
        on_progress: Receives progress.
        wanted: Required kind; None for either.
        token: Sent with requests; huggingface_hub's choice by default.
        endpoint: The hub's address; None: huggingface_hub's choice.
        sleep: Waits for a number of seconds.

    Raises:
        DownloadError: The token is malformed ("denied").
    """

    def __init__(
        self,
        hub_id: HubId,
        on_progress: OnDownload,
        *,
        wanted: RepositoryKind | None = None,
        token: str = "",
        endpoint: str | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._hub_id = hub_id
        self._wanted = wanted
        self._endpoint = endpoint
        self._token = token_to_send(token)
        self._reporter = ProgressReporter(on_progress)
        self._fetcher = Fetcher(self._reporter, endpoint, self._token, sleep)

    def plan(self, scratch: Path) -> DownloadPlan:
        """Plans the download at the present commit; fetches configuration and index only.

        Raises:
            DownloadError: The repository cannot be looked up, or cannot run here.
        """
        self._reporter.state("look up")
        listing = look_up(self._hub_id, self._endpoint, self._fetcher.wait, self._token)
        kind = kind_of(listing.files)
        check_kind(str(self._hub_id), kind, self._wanted)
        if kind == "model":
            small = small_files(listing)
            read = self._read(listing, small, scratch)
            config = read["config.json"]
            check_suitable(str(self._hub_id), config)
            files, backends = (*small, *weights_to_take(listing, read.get(INDEX))), describe(config).backends
        else:
            files, backends = adapter_files(listing), ("hf", "mlx")
            config = self._read(listing, files, scratch)[ADAPTER_CONFIG]
        name = shelf_name(self._hub_id.repository, listing.commit)
        self._listing = listing
        return DownloadPlan(
            repository=self._hub_id.repository,
            revision=self._hub_id.revision,
            commit=listing.commit,
            files=files,
            left=tuple(sorted(listing.files.keys() - {file.name for file in files})),
            kept=sum(kept_bytes(self._hub_id.repository, files)),
            free=_free(),
            config=config,
            here=name if _is_here(name, kind) else "",
            backends=backends,
            kind=kind,
            context=describe(config).context if kind == "model" else None,
            licence=listing.licence,
        )

    def fetch(self, planned: Callable[[DownloadPlan], None] | None = None) -> str:
        """Fetches the missing files and installs them on the shelf.

        Returns:
            The id on the shelf.

        Raises:
            DownloadError: With the cause and the kept bytes; the shelf is unchanged.
        """
        ensure_models_dir()
        with PartialDownload(self._hub_id.repository) as partial:
            try:
                plan = self.plan(partial.folder)
                if planned is not None:
                    planned(plan)
                if plan.here:
                    partial.clear()
                    return plan.here
                partial.write_note(plan)
                self._check_room(plan)
                self._reporter.begin(plan.files, kept_bytes(plan.repository, plan.files))
                sums = self._fetcher.fetch(self._listing, plan.files, partial.folder)
                self._reporter.state("install")
                install_download(plan, partial.folder, sums, self._endpoint)
            except DownloadError as fault:
                raise self._explained(fault, partial) from fault
            except ModelLoadError as fault:  # all files are fetched, but cannot be installed
                received, repository = partial.bytes(), self._hub_id.repository
                what = f"{received:,} bytes are kept until `elsewise models remove {repository}`"
                raise DownloadError(f"{self._hub_id}: {fault} ({what})", "unsuitable", received) from fault
            except OSError as fault:
                raise self._explained(DownloadError(str(fault), "space"), partial) from fault
            partial.clear()
            return plan.name

    def _read(self, listing: Listing, files: Iterable[HubFile], scratch: Path) -> dict[str, Mapping[str, Any]]:
        """Fetches and reads the configuration and the index among some files."""
        small = [file for file in files if file.name in ("config.json", INDEX, ADAPTER_CONFIG)]
        self._fetcher.fetch(listing, small, scratch)
        read: dict[str, Mapping[str, Any]] = {}
        for file in small:
            path = scratch / f"{file.oid}.part"
            try:
                read[file.name] = read_json(path) or {}
            except ModelLoadError as fault:
                message = str(fault).replace(str(path), f"{listing.hub_id}/{file.name}")
                raise DownloadError(message, "unsuitable") from fault
        return read

    def _check_room(self, plan: DownloadPlan) -> None:
        needed = plan.bytes - plan.kept
        if needed + _SPARE_BYTES > plan.free:
            raise DownloadError(
                f"{needed / 1e9:,.2f} GB are still to be fetched into {models_dir()}, {plan.free / 1e9:,.2f} GB are free; "
                "free some space (or set `ELSEWISE_MODELS`)",
                "space",
            )

    def _explained(self, fault: DownloadError, partial: PartialDownload) -> DownloadError:
        """Adds the repository and the kept bytes to an error."""
        where, message, received = str(self._hub_id), str(fault), partial.bytes()
        message = message if message.startswith(self._hub_id.repository) else f"{where}: {message}"
        if fault.reason == "unsuitable":
            partial.clear()
            return DownloadError(message, fault.reason)
        if received:
            message += f" ({received:,} bytes are kept; `elsewise models fetch {where}` goes on with them)"
        return DownloadError(message, fault.reason, received)


def _free() -> int:
    folder = models_dir()
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free


def _is_here(name: str, kind: RepositoryKind) -> bool:
    with contextlib.suppress(ModelLoadError, AdapterError):
        if kind == "adapter":
            read_header(shelf_path(name))
        else:
            open_folder(shelf_path(name), backend="mlx")
        return True
    return False
