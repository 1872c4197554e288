"""Requests to a hub: limits on the size and time of answers, retries, errors. In the child process only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import httpx2
from huggingface_hub import constants, get_session, get_token
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from runtime.errors import DownloadError
from runtime.hub.child_protocol import HubId

LOOK_UP_SECONDS = 20.0
_ATTEMPTS = 3
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
_LOG_IN = "log in with `elsewise models login` (or set `HF_TOKEN` to a token that may read it)"
_LONGEST_TOKEN = 1000  # characters
T = TypeVar("T")


def token_to_send(token: str) -> str:
    """The token to send: the given one, or huggingface_hub's choice (``HF_TOKEN``, 'hf auth login'); empty for none.

    Raises:
        DownloadError: The token has characters that a header cannot have ("denied"); the message does not show it.
    """
    found = token or get_token() or ""
    if not (found.isascii() and found.isprintable() and " " not in found and len(found) <= _LONGEST_TOKEN):
        raise DownloadError(f"the token for the hub has characters that no token has; {_LOG_IN}", "denied")
    return found


def page_address(repository: str, endpoint: str | None) -> str:
    """Address of a repository's page."""
    return f"{endpoint or constants.ENDPOINT}/{repository}"


def with_retries(ask: Callable[[], T], wait: Callable[[float, str], None]) -> T:
    """Sends a request up to three times, while the hub is busy or cannot be reached."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return ask()
        except DownloadError as fault:
            if fault.reason not in ("network", "busy") or attempt == _ATTEMPTS:
                raise
            wait(float(attempt), str(fault))
    raise AssertionError("unreachable")


@contextmanager
def as_download_errors(where: str, hub_id: HubId | None = None, page: str = "") -> Iterator[None]:
    """Turns exceptions of huggingface_hub into a `DownloadError`, whose message names `where`."""
    name = hub_id.repository if hub_id else where
    try:
        yield
    except GatedRepoError as fault:
        raise DownloadError(f"{where}: its owners ask for consent; give it on {page}, then {_LOG_IN}", "denied") from fault
    except RevisionNotFoundError as fault:
        revision = hub_id.revision if hub_id else ""
        message = f"{name} has no revision {revision!r}; give a branch, a tag or a commit that it has"
        raise DownloadError(message, "missing") from fault
    except RepositoryNotFoundError as fault:  # also the answer for private ones
        gone = f"one that is gone or renamed may be found by: `elsewise models search {name.rpartition('/')[2]}`"
        raise DownloadError(f"{name}: no such repository, or a private one: {_LOG_IN}; {gone}", "missing") from fault
    except (DisabledRepoError, HFValidationError) as fault:
        raise DownloadError(f"{where}: {str(fault).splitlines()[0][:200]}", "missing") from fault
    except HfHubHTTPError as fault:
        raise http_error(where, fault.response.status_code, page) from fault
    except OfflineModeIsEnabled as fault:
        raise DownloadError(f"{where}: HF_HUB_OFFLINE forbids the network; unset it", "network") from fault
    except httpx2.HTTPError as fault:
        raise network_error(where, fault) from fault
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as fault:
        raise DownloadError(f"{where}: the hub's answer cannot be read ({fault!s:.120}); try again later") from fault


def http_error(where: str, status: int, page: str = "") -> DownloadError:
    """The error for an HTTP status."""
    if status in (401, 403):
        consent = f"accept its licence on {page}, and " if status == 403 and page else ""
        return DownloadError(f"{where}: the hub refuses (HTTP {status}); {consent}{_LOG_IN}", "denied")
    if status in (404, 410):
        return DownloadError(f"{where}: not there (HTTP {status})", "missing")
    if status in _BUSY:
        what = "asks for fewer requests" if status == 429 else "is in trouble"
        return DownloadError(f"{where}: the hub {what} (HTTP {status}); try again later", "busy")
    return DownloadError(f"{where}: the hub answers HTTP {status}; try again later")


def network_error(where: str, fault: Exception) -> DownloadError:
    """The error for a missing or incomplete answer."""
    reason = f"{type(fault).__name__}: {fault}".rstrip(": ")[:200]
    return DownloadError(f"{where}: the hub cannot be reached ({reason}); check the network", "network")


MOST_BYTES = 32 << 20  # of an answer; a list of files has some KB per hundred files
MOST_SECONDS = 120.0


def limit_answers() -> None:
    """Makes huggingface_hub's client raise `ValueError` for an answer that is too large, compressed or too slow.

    Files are fetched by another client, which knows their sizes (`runtime.hub.part_file`).
    """
    client = get_session()
    hooks = client.event_hooks
    if _limited not in hooks["response"]:
        client.event_hooks = {"request": [*hooks["request"], _plain], "response": [*hooks["response"], _limited]}


def _plain(request: httpx2.Request) -> None:
    request.headers["Accept-Encoding"] = "identity"  # a compressed answer has an unknown size


def _limited(response: httpx2.Response) -> None:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ValueError("it is compressed, which was not asked for")
    assert isinstance(response.stream, httpx2.SyncByteStream)
    response.stream = _Limited(response.stream)


class _Limited(httpx2.SyncByteStream):
    """A stream with limits on size and time."""

    def __init__(self, stream: httpx2.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        done, until = 0, time.monotonic() + MOST_SECONDS
        for chunk in self._stream:
            done += len(chunk)
            if done > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
            if time.monotonic() > until:
                raise ValueError(f"it takes longer than {MOST_SECONDS:g} s")
            yield chunk

    def close(self) -> None:
        self._stream.close()
