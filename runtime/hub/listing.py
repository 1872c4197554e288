"""What a repository holds at one commit, asked through huggingface_hub. In the child process only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import httpx2
from huggingface_hub import HfApi
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
from runtime.hub.plan import HubFile, HubId

LOOK_UP_SECONDS = 20.0
_ATTEMPTS = 3
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
TOKEN_HELP = "log in with 'hf auth login', or set HF_TOKEN to a token that may read it"


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository at one commit: its files by name."""

    hub_id: HubId
    commit: str
    files: dict[str, HubFile]


def look_up(hub_id: HubId, endpoint: str | None, wait: Callable[[float, str], None]) -> Listing:
    """One question to the hub, asked again where it is busy.

    Args:
        hub_id: Of the repository.
        endpoint: The hub's address; None for huggingface_hub's own choice (``HF_ENDPOINT``).
        wait: Waits some seconds, for a reason.

    Raises:
        DownloadError: No such repository or revision, no right to read it, no network, or a hub that does not answer.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _asked(hub_id, endpoint)
        except DownloadError as fault:
            if fault.reason not in ("network", "busy") or attempt == _ATTEMPTS:
                raise
            wait(float(attempt), str(fault))
    raise AssertionError("unreachable")


def _asked(hub_id: HubId, endpoint: str | None) -> Listing:
    api = HfApi(endpoint=endpoint, library_name="elsewise")
    where = str(hub_id)
    try:
        info = api.model_info(hub_id.repository, revision=hub_id.revision, files_metadata=True, timeout=LOOK_UP_SECONDS)
    except GatedRepoError as fault:
        page = f"{api.endpoint}/{hub_id.repository}"
        raise DownloadError(f"{where}: its owners ask for consent; give it on {page}, then {TOKEN_HELP}", "denied") from fault
    except RevisionNotFoundError as fault:
        message = f"{hub_id.repository} has no revision {hub_id.revision!r}; give a branch, a tag or a commit that it has"
        raise DownloadError(message, "missing") from fault
    except RepositoryNotFoundError as fault:  # the hub says the same of private ones
        raise DownloadError(f"{hub_id.repository}: no such repository, or a private one: {TOKEN_HELP}", "missing") from fault
    except (DisabledRepoError, HFValidationError) as fault:
        raise DownloadError(f"{where}: {str(fault).splitlines()[0][:200]}", "missing") from fault
    except HfHubHTTPError as fault:
        raise refused(where, fault.response.status_code) from fault
    except OfflineModeIsEnabled as fault:
        raise DownloadError(f"{where}: HF_HUB_OFFLINE forbids the network; unset it", "network") from fault
    except httpx2.HTTPError as fault:
        raise unreachable(where, fault) from fault
    except (ValueError, TypeError, KeyError, AttributeError) as fault:
        raise DownloadError(f"{where}: the hub's answer cannot be read ({fault!s:.120}); try again later") from fault
    return _listing(hub_id, info.sha, [(s.rfilename, s.size, s.blob_id, s.lfs) for s in info.siblings or ()])


def refused(where: str, status: int) -> DownloadError:
    """An answer that is an HTTP error."""
    if status in (401, 403):
        return DownloadError(f"{where}: the hub refuses (HTTP {status}); {TOKEN_HELP}", "denied")
    if status in (404, 410):
        return DownloadError(f"{where}: not there (HTTP {status})", "missing")
    if status in _BUSY:
        what = "asks for fewer requests" if status == 429 else "is in trouble"
        return DownloadError(f"{where}: the hub {what} (HTTP {status}); try again later", "busy")
    return DownloadError(f"{where}: the hub answers HTTP {status}; try again later")


def unreachable(where: str, fault: Exception) -> DownloadError:
    """No answer at all, or half of one."""
    reason = f"{type(fault).__name__}: {fault}".rstrip(": ")[:200]
    return DownloadError(f"{where}: the hub cannot be reached ({reason}); check the network", "network")


def _listing(hub_id: HubId, commit: object, siblings: list[tuple[object, object, object, object]]) -> Listing:
    def unreadable(what: object) -> DownloadError:
        return DownloadError(f"{hub_id}: the hub's answer cannot be read ({what!s:.120}); try again later")

    if not _digest(commit, 40):
        raise unreadable(f"its commit is {commit!r}")
    files = {}
    for name, size, blob, large in siblings:
        if not isinstance(name, str) or not isinstance(size, int) or size < 0:
            raise unreadable(f"{name!r} of {size!r} bytes")
        oid = getattr(large, "sha256", None) if large is not None else blob
        if not _digest(oid, 40 if large is None else 64):
            raise unreadable(f"{name!r} has the digest {oid!r}")
        files[name] = HubFile(name, size, str(oid), large is not None)
    return Listing(hub_id, str(commit), files)


def _digest(value: object, digits: int) -> bool:
    return isinstance(value, str) and len(value) == digits and all(char in "0123456789abcdef" for char in value)
