"""What a repository holds at one commit, asked through huggingface_hub. In the child process only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from huggingface_hub import HfApi

from runtime.errors import DownloadError
from runtime.hub.answers import LOOK_UP_SECONDS, explained, page_of, patiently
from runtime.hub.plan import HubFile, HubId

_LICENCE = 40  # characters of one


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository at one commit: its files by name, and the licence that its page names."""

    hub_id: HubId
    commit: str
    files: dict[str, HubFile]
    licence: str = ""


def look_up(hub_id: HubId, endpoint: str | None, wait: Callable[[float, str], None], token: str = "") -> Listing:
    """One question to the hub, asked again where it is busy.

    Args:
        hub_id: Of the repository.
        endpoint: The hub's address; None for huggingface_hub's own choice (``HF_ENDPOINT``).
        wait: Waits some seconds, for a reason.
        token: To ask with; empty for none.

    Raises:
        DownloadError: No such repository or revision, no right to read it, no network, or a hub that does not answer.
    """
    return patiently(lambda: _asked(hub_id, endpoint, token), wait)


def _asked(hub_id: HubId, endpoint: str | None, token: str) -> Listing:
    api = HfApi(endpoint=endpoint, library_name="elsewise", token=token or False)
    with explained(str(hub_id), hub_id, page_of(hub_id.repository, endpoint)):
        info = api.model_info(hub_id.repository, revision=hub_id.revision, files_metadata=True, timeout=LOOK_UP_SECONDS)
        found = [(s.rfilename, s.size, s.blob_id, s.lfs) for s in info.siblings or ()]
        licence = _licence(info.tags)
    return replace(_listing(hub_id, info.sha, found), licence=licence)


def _listing(hub_id: HubId, commit: object, siblings: Sequence[tuple[object, object, object, object]]) -> Listing:
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


def _licence(tags: object) -> str:
    """The hub repeats it among the tags: "license:mit"; nothing there is believed to be of the right type."""
    named = [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
    found = next((tag.partition(":")[2] for tag in named if tag.startswith("license:")), "")
    return found[:_LICENCE] if found.isprintable() else ""


def _digest(value: object, digits: int) -> bool:
    return isinstance(value, str) and len(value) == digits and all(char in "0123456789abcdef" for char in value)
