"""Answers of a hub that are endless, compressed or too slow: given up with a typed error."""

from __future__ import annotations

import contextlib
import gzip
import json

import pytest

from runtime.errors import DownloadError
from runtime.hub import responses
from runtime.hub.search import search
from tests.runtime.hub.conftest import Fetch, failed
from tests.runtime.hub.local_hub import Files, LocalHub, Request


def endless(request: Request) -> bool:
    """Sends spaces, which may precede JSON, until the client disconnects."""
    request.handler.send_response(200)
    request.handler.send_header("Connection", "close")
    request.handler.end_headers()
    with contextlib.suppress(OSError):
        while True:
            request.handler.wfile.write(b" " * 65_536)
    request.handler.close_connection = True
    return True


def packed(request: Request) -> bool:
    """A decompression bomb: a thousand times larger than what is sent."""
    return request.answer(200, gzip.compress(b" " * 10_000_000 + b"[]"), Content_Encoding="gzip")


@pytest.mark.parametrize(("reply", "said"), [(endless, "it has more than 1,000,000 bytes"), (packed, "it is compressed")])
def test_an_endless_or_compressed_answer_is_given_up(
    reply: object, said: str, hub: LocalHub, fetch: Fetch, tiny: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "MOST_BYTES", 1_000_000)
    hub.add("org/tiny", tiny)
    assert callable(reply)
    hub.before = [lambda request: "/api/" in request.path and bool(reply(request))]
    fault = failed(fetch)
    assert fault.reason == "server"
    assert said in str(fault)
    with pytest.raises(DownloadError, match=f"answer cannot be read .*{said}"):
        search("tiny", 5, lambda seconds, why: None, endpoint=hub.address)
    assert len(hub.asked) == 2  # no retry


def test_an_answer_that_takes_too_long_is_given_up(
    hub: LocalHub, fetch: Fetch, tiny: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/tiny", tiny)
    monkeypatch.setattr(responses, "MOST_SECONDS", -1.0)
    assert "it takes longer than -1 s" in str(failed(fetch))


def test_compressed_answers_are_not_requested(hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    hub.add("org/tiny", tiny)
    asked: set[str | None] = set()

    def noted(request: Request) -> bool:
        asked.add(request.handler.headers.get("Accept-Encoding"))
        return False

    hub.before = [noted]
    fetch()
    assert asked == {"identity"}
    assert json.loads(tiny["config.json"])  # the hub had content to compress
