"""Several files of a repository, fetched side by side. In the child process only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import httpx2
from huggingface_hub import get_async_session, hf_hub_url

from runtime.hub.answers import page_of
from runtime.hub.listing import Listing
from runtime.hub.parts import Address, Part, fetch_part
from runtime.hub.plan import HubFile
from runtime.hub.telling import Telling
from runtime.version import __version__

AT_ONCE = 3  # files: one connection seldom fills a line, and hubs do not love many
_PAUSE_SECONDS = 0.5  # between two reports while it waits
Sleep = Callable[[float], Awaitable[None]]


class Taking:
    """Fetches files into a folder, each as ``OID.part``: at most `AT_ONCE` together, and each content once.

    Args:
        telling: Hears of bytes.
        endpoint: The hub's address; None for huggingface_hub's own choice.
        token: To ask with; empty for none.
        sleep: Waits some seconds.
    """

    def __init__(self, telling: Telling, endpoint: str | None, token: str, sleep: Sleep) -> None:
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
