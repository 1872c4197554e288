"""Resumable download of one file of a repository by range requests. In the child process only.

huggingface_hub restarts an interrupted file and names partial files at random; here received bytes stay in a part file, and a
range request asks for the rest. A file is complete once its digest is the one that the repository lists.
"""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import httpx2
from huggingface_hub.errors import OfflineModeIsEnabled

from runtime.errors import DownloadError
from runtime.hub.child_protocol import HubFile
from runtime.hub.responses import http_error, network_error

ATTEMPTS = 6  # failures in a row without `_PROGRESS` in between
_PROGRESS = 1 << 20  # bytes that reset the count of failures
_LONGEST_WAIT = 60.0  # seconds
_SILENCE_SECONDS = 30.0  # without a byte, after which a connection is closed
_CHUNK = 1 << 20
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


@dataclass(frozen=True, slots=True)
class FileAddress:
    """Client, URL and headers of a file, and the page where its licence is accepted."""

    client: httpx2.AsyncClient
    url: str
    page: str
    headers: Mapping[str, str]


class PartFile:
    """The received bytes of a file.

    Args:
        path: The part file; its existing bytes count after `read_back`.
        file: Size and digest of the complete file.

    Raises:
        DownloadError: The part file cannot be written ("space").
    """

    def __init__(self, path: Path, file: HubFile) -> None:
        self._file = file
        try:
            self._stream = FileIO(path, "a+")
        except OSError as fault:
            raise self._unwritable(fault) from fault
        self._begin()

    def __enter__(self) -> PartFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def read_back(self) -> Iterator[None]:
        """Hashes the existing bytes, a chunk at a time."""
        self._stream.seek(0)
        while chunk := self._stream.read(_CHUNK):
            self._digest(chunk)
            yield
        if self.done > self._file.size:  # the bytes belong to another file
            self.restart()

    @property
    def sound(self) -> bool:
        """Whether the digest of all bytes is the one that the repository lists."""
        found = self._sha256.hexdigest() if self._file.large else self._git.hexdigest()
        return found == self._file.oid

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def restart(self) -> None:
        self._stream.truncate(0)
        self._begin()

    def add(self, chunk: bytes) -> None:
        """Appends bytes.

        Raises:
            DownloadError: The disk is full ("space"), or the file would exceed its size ("changed").
        """
        if self.done + len(chunk) > self._file.size:
            raise DownloadError(
                f"{self._file.name}: the server sends more than the {self._file.size:,} bytes it has", "changed"
            )
        view = memoryview(chunk)
        while view:
            try:
                written = self._stream.write(view) or 0
            except OSError as fault:
                raise self._unwritable(fault) from fault
            self._digest(view[:written])
            view = view[written:]

    def _begin(self) -> None:
        self.done = 0
        self._sha256 = hashlib.sha256()
        self._git = hashlib.sha1(b"blob %d\0" % self._file.size, usedforsecurity=False)  # git's id of a small file

    def _digest(self, chunk: bytes | memoryview) -> None:
        self.done += len(chunk)
        self._sha256.update(chunk)
        if not self._file.large:
            self._git.update(chunk)

    def _unwritable(self, fault: OSError) -> DownloadError:
        full = fault.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        what = "the disk is full" if full else f"it cannot be written ({fault.strerror})"
        return DownloadError(
            f"{self._file.name}: {what}; free some space and fetch again, it goes on where it stopped", "space"
        )


class _RetryError(Exception):
    """A failure after which the request is repeated."""

    def __init__(self, fault: DownloadError, after: float | None = None) -> None:
        self.fault, self.after = fault, after


async def fetch_part(
    part: PartFile,
    file: HubFile,
    address: FileAddress,
    report: Callable[[], None],
    wait: Callable[[float, str], Awaitable[None]],
) -> None:
    """Fetches the missing bytes of a file, with retries, and compares its digest.

    Raises:
        DownloadError: The file could not be fetched; received bytes stay in the part unless they are wrong.
    """
    failures, wrong, resumed = 0, 0, part.done > 0
    while True:
        if part.done == file.size:
            if part.sound:
                return
            part.restart()
            wrong += 1
            if wrong > 1 or not resumed:  # resumed bytes may be wrong: the whole file is fetched once more
                raise DownloadError(f"{file.name}: its digest is not the one that the repository names; fetch it again", "hash")
        before = part.done
        try:
            await _receive(part, file, address, report)
        except _RetryError as again:
            failures = 1 if part.done - before >= _PROGRESS else failures + 1
            if failures >= ATTEMPTS:
                raise again.fault from again
            delay = float(2 ** (failures - 1)) if again.after is None else again.after
            await wait(min(delay, _LONGEST_WAIT), str(again.fault))
            resumed = resumed or part.done > 0


async def _receive(part: PartFile, file: HubFile, address: FileAddress, report: Callable[[], None]) -> None:
    """Sends one request and receives until the end of the file or an error."""
    headers = {**address.headers, "Accept-Encoding": "identity"}
    if part.done:
        headers["Range"] = f"bytes={part.done}-"
    try:
        async with address.client.stream("GET", address.url, headers=headers, timeout=_SILENCE_SECONDS) as response:
            _check_answer(part, file, response, address.page)
            async for chunk in response.aiter_raw():
                part.add(chunk)
                report()
    except OfflineModeIsEnabled as fault:
        raise DownloadError(f"{file.name}: HF_HUB_OFFLINE forbids the network; unset it", "network") from fault
    except httpx2.TransportError as fault:
        raise _RetryError(network_error(file.name, fault)) from fault
    except (httpx2.HTTPError, httpx2.InvalidURL) as fault:
        raise network_error(file.name, fault) from fault
    if part.done < file.size:
        message = f"{file.name}: the server stopped after {part.done:,} of {file.size:,} bytes"
        raise _RetryError(DownloadError(message, "network"))


def _check_answer(part: PartFile, file: HubFile, response: httpx2.Response, page: str) -> None:
    """Refuses an answer that is not the rest of this file."""
    status = response.status_code
    if status == 416:  # the server has nothing after these bytes: they belong to another file
        part.restart()
        raise _RetryError(DownloadError(f"{file.name}: the server has nothing after what is here", "changed"))
    if status not in (200, 206):
        fault = http_error(file.name, status, page)
        if fault.reason == "busy":
            raise _RetryError(fault, _retry_after(response))
        raise fault
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise DownloadError(f"{file.name}: the server sends it compressed, which was not asked for")
    if status == 200:
        if part.done:
            part.restart()  # a server without ranges: from the start
        length = response.headers.get("Content-Length")
        _check_size(file, file.size if length is None else _number(length))
        return
    found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if found is None or int(found[1]) != part.done:
        part.restart()
        raise _RetryError(DownloadError(f"{file.name}: the server sends another part than was asked for"))
    if found[3] != "*":
        _check_size(file, int(found[3]))


def _check_size(file: HubFile, size: int) -> None:
    if size != file.size:
        message = f"{file.name}: the server has {size:,} bytes of it, the repository says {file.size:,}; it changed, or it lies"
        raise DownloadError(message, "changed")


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else -1


def _retry_after(response: httpx2.Response) -> float | None:
    """``Retry-After`` in seconds; None without it, or where it is a date."""
    value = response.headers.get("Retry-After", "").strip()
    return float(value) if value.isascii() and value.isdigit() and len(value) < 10 else None
