"""A repository is looked up, weighed, fetched and put on the shelf. In the child process only."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub import get_async_session, hf_hub_url

from runtime.adapters.folder import is_on_shelf
from runtime.errors import DownloadError, ModelLoadError
from runtime.hub.child_protocol import DownloadPlan, HubFile, HubId, Kind, OnDownload, shelf_name
from runtime.hub.download_progress import ProgressReporter
from runtime.hub.install import install_download
from runtime.hub.part_file import Address, Part, fetch_part
from runtime.hub.partial_downloads import PartialDownload, kept_bytes
from runtime.hub.repository import (
    Listing,
    adapter_files,
    check_kind,
    check_suitable,
    holds,
    look_up,
    small_files,
    weights_to_take,
)
from runtime.hub.responses import page_of, token_to_send
from runtime.loading.config import describe
from runtime.loading.model_folder import INDEX, open_folder, read_json
from runtime.loading.paths import ADAPTER_CONFIG, made_models_dir, models_dir, shelf_path
from runtime.version import __version__

AT_ONCE = 3  # files: one connection seldom fills a line, and hubs do not love many
_PAUSE_SECONDS = 0.5  # between two reports while it waits
Sleep = Callable[[float], Awaitable[None]]


class Fetcher:
    """Fetches files into a folder, each as ``OID.part``: at most `AT_ONCE` together, and each content once.

    Args:
        telling: Hears of bytes.
        endpoint: The hub's address; None for huggingface_hub's own choice.
        token: To ask with; empty for none.
        sleep: Waits some seconds.
    """

    def __init__(self, telling: ProgressReporter, endpoint: str | None, token: str, sleep: Sleep) -> None:
        self._telling = telling
        self._endpoint = endpoint
        self._sleep = sleep
        # httpx takes the token off where a redirect leads elsewhere
        self._headers = {"User-Agent": f"elsewise/{__version__}"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def take(self, listing: Listing, files: Iterable[HubFile], folder: Path) -> dict[str, str]:
        """Fetches what is missing of some files, and compares their digests.

        Returns:
            SHA-256 by name.

        Raises:
            DownloadError: The first that went wrong; the others are stopped, and what has arrived of them is kept.
        """
        return asyncio.run(self._take(listing, files, folder))

    def wait(self, seconds: float, why: str) -> None:
        """Waits where nothing is under way."""
        asyncio.run(self._wait(seconds, why))

    async def _take(self, listing: Listing, files: Iterable[HubFile], folder: Path) -> dict[str, str]:
        alike: dict[str, list[HubFile]] = {}  # two names of one content are one part file
        for file in files:
            alike.setdefault(file.oid, []).append(file)
        sums: dict[str, str] = {}
        room = asyncio.Semaphore(AT_ONCE)

        async def one(client: httpx2.AsyncClient, files: Sequence[HubFile]) -> None:
            async with room:
                sums.update(dict.fromkeys((file.name for file in files), await self._fetch(client, listing, files, folder)))

        async with get_async_session() as client:
            try:
                async with asyncio.TaskGroup() as group:
                    for each in alike.values():
                        group.create_task(one(client, each))
            except BaseExceptionGroup as faults:  # what stopped them all
                raise faults.exceptions[0] from faults.exceptions[0].__cause__
        return sums

    async def _fetch(self, client: httpx2.AsyncClient, listing: Listing, files: Sequence[HubFile], folder: Path) -> str:
        """A file, whole and compared; its SHA-256."""
        file, repository = files[0], listing.hub_id.repository
        url = hf_hub_url(repository, file.name, revision=listing.commit, endpoint=self._endpoint)
        address = Address(client, url, page_of(repository, self._endpoint), self._headers)
        with Part(folder / f"{file.oid}.part", file) as part:
            self._telling.check(file, 0)
            for _ in part.read_back():
                self._telling.check(file, part.done)
                await asyncio.sleep(0)  # what is here of a large file takes seconds to read: the others go on

            def tell() -> None:
                self._telling.fetch(file, part.done)

            async def wait(seconds: float, why: str) -> None:
                await self._wait(seconds, why, file, part)

            await fetch_part(part, file, address, tell, wait)
            for each in files:
                self._telling.end(each)
            return part.sha256

    async def _wait(self, seconds: float, why: str, file: HubFile | None = None, part: Part | None = None) -> None:
        while seconds > 0:
            self._telling.wait(file, part.done if part else 0, why)
            step = min(seconds, _PAUSE_SECONDS)
            await self._sleep(step)
            seconds -= step


_SPARE_BYTES = 256 << 20


class Download:
    """One repository.

    Args:
        hub_id: Which.
        say: Hears how far it is.
        wanted: What it must hold; None for either.
        token: To ask with; huggingface_hub's own choice by default.
        endpoint: The hub's address; None for huggingface_hub's own choice.
        sleep: Waits some seconds.

    Raises:
        DownloadError: The token cannot be one ("denied").
    """

    def __init__(
        self,
        hub_id: HubId,
        say: OnDownload,
        *,
        wanted: Kind | None = None,
        token: str = "",
        endpoint: str | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._hub_id = hub_id
        self._wanted = wanted
        self._endpoint = endpoint
        self._token = token_to_send(token)
        self._telling = ProgressReporter(say)
        self._taking = Fetcher(self._telling, endpoint, self._token, sleep)

    def plan(self, scratch: Path) -> DownloadPlan:
        """What would be fetched, at the commit of this moment. Configuration and index are read for it, nothing else.

        Args:
            scratch: A folder for those.

        Raises:
            DownloadError: It cannot be looked up, or is nothing that Elsewise runs.
        """
        self._telling.state("look up")
        listing = look_up(self._hub_id, self._endpoint, self._taking.wait, self._token)
        kind = holds(listing.files)
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
        """Fetches what is missing, and puts the model on the shelf.

        Args:
            planned: Hears what will be fetched.

        Returns:
            Its name there.

        Raises:
            DownloadError: With the cause, and what was kept. Nothing is on the shelf then that was not there before.
        """
        made_models_dir()
        with PartialDownload(self._hub_id.repository) as kept:
            try:
                plan = self.plan(kept.folder)
                if planned is not None:
                    planned(plan)
                if plan.here:
                    kept.clear()
                    return plan.here
                kept.keep(plan)
                self._check_room(plan)
                self._telling.begin(plan.files, kept_bytes(plan.repository, plan.files))
                sums = self._taking.take(self._listing, plan.files, kept.folder)
                self._telling.state("install")
                install_download(plan, kept.folder, sums, self._endpoint)
            except DownloadError as fault:
                raise self._explained(fault, kept) from fault
            except ModelLoadError as fault:  # all of it is here, and cannot be put on the shelf
                here, repository = kept.bytes(), self._hub_id.repository
                what = f"{here:,} bytes are kept until: elsewise models remove {repository}"
                raise DownloadError(f"{self._hub_id}: {fault} ({what})", "unsuitable", here) from fault
            except OSError as fault:
                raise self._explained(DownloadError(str(fault), "space"), kept) from fault
            kept.clear()
            return plan.name

    def _read(self, listing: Listing, files: Iterable[HubFile], scratch: Path) -> dict[str, Mapping[str, Any]]:
        """The configuration and the index among some files, fetched."""
        small = [file for file in files if file.name in ("config.json", INDEX, ADAPTER_CONFIG)]
        self._taking.take(listing, small, scratch)
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
                "free some space or set ELSEWISE_MODELS",
                "space",
            )

    def _explained(self, fault: DownloadError, kept: PartialDownload) -> DownloadError:
        """With whose download it was, and what is here of it."""
        where, said, here = str(self._hub_id), str(fault), kept.bytes()
        said = said if said.startswith(self._hub_id.repository) else f"{where}: {said}"
        if fault.reason == "unsuitable":
            kept.clear()
            return DownloadError(said, fault.reason)
        if here:
            said += f" ({here:,} bytes are kept: the same command goes on with them)"
        return DownloadError(said, fault.reason, here)


def _free() -> int:
    folder = models_dir()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _is_here(name: str, kind: Kind) -> bool:
    if kind == "adapter":
        return is_on_shelf(name)
    with contextlib.suppress(ModelLoadError):
        open_folder(shelf_path(name), backend="mlx")
        return True
    return False
