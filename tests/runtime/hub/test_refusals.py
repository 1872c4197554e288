"""Hubs that refuse, are busy or unreachable; a full disk: always a typed error, and no incomplete model on the shelf."""

from __future__ import annotations

import re
import resource
import shutil
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
from huggingface_hub import constants

from runtime.hub.child_protocol import DownloadProgress
from runtime.hub.part_file import ATTEMPTS
from runtime.hub.partial_downloads import PartialDownload, unfinished_downloads
from tests.runtime.hub.conftest import Fetch, failed
from tests.runtime.hub.local_hub import Files, LocalHub, Reply, for_file, status

WEIGHTS = "model.safetensors"
Usage = namedtuple("Usage", "total used free")


def listing(reply: Reply) -> Reply:
    """Replies to the request for the repository's list of files."""
    return lambda request: "/api/models/" in request.path and reply(request)


@pytest.mark.parametrize(
    ("reply", "reason", "said"),
    [
        (
            status(401, X_Error_Code="RepoNotFound"),
            "missing",
            r"no such repository, or a private one: log in with `elsewise models login` \(or set `HF_TOKEN`",
        ),
        (status(404, X_Error_Code="RevisionNotFound"), "missing", "has no revision 'main'"),
        (status(403, X_Error_Code="GatedRepo"), "denied", "its owners ask for consent; give it on .*/org/tiny, then log in"),
        (status(401), "denied", r"the hub refuses \(HTTP 401\); log in with `elsewise models login` \(or set `HF_TOKEN`"),
        (status(403), "denied", r"the hub refuses \(HTTP 403\); accept its licence on .*/org/tiny, and log in with `elsewise"),
        (status(429), "busy", r"asks for fewer requests \(HTTP 429\); try again later"),
        (status(500), "busy", r"is in trouble \(HTTP 500\)"),
        (status(503), "busy", "HTTP 503"),
        (status(418), "server", "HTTP 418"),
        (lambda request: request.answer(200, b"<html>"), "server", "answer cannot be read"),
        (lambda request: request.json(200, [1]), "server", "answer cannot be read"),
        (
            lambda request: request.json(200, {"id": "x", "sha": "../../up", "siblings": []}),
            "server",
            "its commit is '../../up'",
        ),
    ],
)
def test_an_error_answer_to_the_listing_is_reported_with_its_reason(
    reply: Reply, reason: str, said: str, hub: LocalHub, fetch: Fetch, tiny: Files
) -> None:
    hub.add("org/tiny", tiny)
    hub.before = [listing(reply)]
    fault = failed(fetch)
    assert fault.reason == reason
    assert re.search(said, str(fault))
    assert hub.fetched() == []


@pytest.mark.parametrize(
    "sibling", [{"size": -1}, {"size": "1"}, {"size": None}, {"blobId": "../x"}, {"blobId": None}, {"rfilename": 3}]
)
def test_a_malformed_listing_is_refused(sibling: dict[str, Any], hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    commit = hub.add("org/tiny", tiny)
    odd = {"rfilename": "config.json", "size": 3, "blobId": "0" * 40} | sibling
    hub.before = [listing(lambda request: request.json(200, {"id": "org/tiny", "sha": commit, "siblings": [odd]}))]
    failed(fetch)


def test_a_missing_repository_and_a_missing_revision_are_named(hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    hub.add("org/tiny", tiny)
    repository, revision = failed(fetch, "org/other"), failed(fetch, "org/tiny@v9")
    assert repository.reason == revision.reason == "missing"
    # and each error says what can be done
    assert "org/other: no such repository, or a private one: log in with `elsewise models login`" in str(repository)
    assert "org/tiny has no revision 'v9'; give a branch, a tag or a commit that it has" in str(revision)


def test_resuming_at_a_deleted_commit_is_refused_and_keeps_the_bytes(hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    commit = hub.add("org/tiny", tiny)
    hub.before = [for_file(WEIGHTS, status(404))]
    failed(fetch)
    (note,) = unfinished_downloads()
    assert note.source == f"org/tiny@{commit}"
    hub.before = [lambda request: request.json(404, {"error": "gone"}, X_Error_Code="RevisionNotFound")]
    fault = failed(fetch, note.source)
    assert (fault.reason, f"org/tiny has no revision {commit!r}; give a branch" in str(fault)) == ("missing", True)
    assert unfinished_downloads() == [note]  # the bytes are kept: another commit may share them


@pytest.mark.parametrize(("code", "reason"), [(401, "denied"), (403, "denied"), (404, "missing"), (400, "server")])
def test_a_refused_file_is_not_requested_again(
    code: int, reason: str, hub: LocalHub, fetch: Fetch, tiny: Files, waits: list[float]
) -> None:
    hub.add("org/tiny", tiny)
    hub.before = [for_file(WEIGHTS, status(code))]
    fault = failed(fetch)
    assert fault.reason == reason
    assert (len(hub.ranges(WEIGHTS)), waits) == (1, [])
    assert ("log in with `elsewise models login` (or set `HF_TOKEN`" in str(fault)) is (reason == "denied")
    assert (f"accept its licence on {hub.address}/org/tiny" in str(fault)) is (code == 403)


@pytest.mark.parametrize("code", [408, 429, 503])
def test_a_busy_server_is_retried_with_growing_delays(
    code: int, hub: LocalHub, fetch: Fetch, tiny: Files, waits: list[float], steps: list[DownloadProgress]
) -> None:
    # given a server that recovers
    hub.add("org/tiny", tiny)
    hub.before = [for_file(WEIGHTS, status(code), times=3)]
    fetch()
    assert sum(waits) == 1 + 2 + 4
    notes = {step.note for step in steps if step.state == "wait"}
    assert len(notes) == 1
    assert f"HTTP {code}" in notes.pop()


def test_a_server_that_stays_busy_is_given_up(hub: LocalHub, fetch: Fetch, tiny: Files, waits: list[float]) -> None:
    hub.add("org/tiny", tiny)
    hub.before = [for_file(WEIGHTS, status(503))]
    fault = failed(fetch)
    assert (fault.reason, len(hub.ranges(WEIGHTS))) == ("busy", ATTEMPTS)
    assert fault.kept > 0  # the small files


@pytest.mark.parametrize(("asked", "waited"), [("7", 7), ("100000", 60), ("soon", 1), ("-5", 1)])
def test_the_retry_after_header_of_a_server_is_respected_within_limits(
    asked: str, waited: int, hub: LocalHub, fetch: Fetch, tiny: Files, waits: list[float]
) -> None:
    hub.add("org/tiny", tiny)
    hub.before = [for_file(WEIGHTS, status(429, Retry_After=asked), times=1)]
    fetch()
    assert sum(waits) == waited


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "http://no-such-hub.invalid"])
def test_an_unreachable_hub_is_named_as_such(address: str, hub: LocalHub, fetch: Fetch) -> None:
    hub.address = address  # a port without a listener, and a name that does not resolve
    fault = failed(fetch)
    assert fault.reason == "network"
    assert "cannot be reached" in str(fault)


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/blob", "http://no-such-store.invalid/blob"])
def test_weights_on_an_unreachable_server_are_retried(
    address: str, hub: LocalHub, fetch: Fetch, tiny: Files, waits: list[float]
) -> None:
    hub.add("org/tiny", tiny)
    hub.before = [for_file(WEIGHTS, status(302, Location=address))]
    fault = failed(fetch)
    assert (fault.reason, len(hub.ranges(WEIGHTS))) == ("network", ATTEMPTS)
    assert sum(waits) == 1 + 2 + 4 + 8 + 16
    assert fault.kept > 0
    hub.before = []
    fetch()


@pytest.mark.parametrize(
    "address", ["/org/tiny/resolve/main/model.safetensors", "file:///etc/passwd", "http://[", "gopher://x/"]
)
def test_a_redirect_that_leads_nowhere_is_a_typed_error(address: str, hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    hub.add("org/tiny", tiny)
    hub.before = [for_file(WEIGHTS, status(302, Location=address))]
    assert failed(fetch).reason == "network"


def test_offline_mode_is_named_as_the_reason(hub: LocalHub, fetch: Fetch, tiny: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/tiny", tiny)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE forbids the network" in str(failed(fetch))
    assert hub.asked == []


def test_too_little_disk_space_is_reported_before_the_weights(
    hub: LocalHub, fetch: Fetch, tiny: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/tiny", tiny)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 1000))
    fault = failed(fetch)
    assert fault.reason == "space"
    assert "0.00 GB are free; free some space (or set `ELSEWISE_MODELS`)" in str(fault)
    assert hub.fetched() == ["config.json"]


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Limits files to 100,000 bytes: the kernel refuses further writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_up_keeps_what_was_written(
    hub: LocalHub, fetch: Fetch, tiny: Files, small_disk: None, request: pytest.FixtureRequest
) -> None:
    hub.add("org/tiny", tiny)
    fault = failed(fetch)
    assert fault.reason == "space"
    assert "the disk is full; free some space and fetch again" in str(fault)
    [note] = unfinished_downloads()
    assert note.kept == fault.kept >= 100_000


def test_one_process_fetches_a_repository_at_a_time(hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    hub.add("org/tiny", tiny)
    with PartialDownload("org/tiny"):
        assert failed(fetch).reason == "taken"
    fetch()
