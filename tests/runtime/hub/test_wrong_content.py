"""Hubs that send wrong content, stop halfway or change their files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from runtime.hub.part_file import ATTEMPTS
from runtime.shelf.source import resolve
from tests.runtime.hub.conftest import Fetch, failed
from tests.runtime.hub.local_hub import Files, LocalHub, Reply, Request, for_file, oid, status, stop_after
from tests.tiny_models import tiny_path

WEIGHTS = "model.safetensors"


def test_a_download_is_resumed_each_time_the_server_stops(hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    hub.add("org/tiny", tiny)
    piece = len(tiny[WEIGHTS]) // 4 + 1
    hub.before = [for_file(WEIGHTS, stop_after(piece), times=3)]
    name = fetch()
    assert hub.ranges(WEIGHTS) == [None, f"bytes={piece}-", f"bytes={2 * piece}-", f"bytes={3 * piece}-"]
    assert resolve(name).weights_digest == resolve(tiny_path("llama")).weights_digest


def test_a_server_that_makes_no_progress_is_given_up(hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    hub.add("org/tiny", tiny)
    hub.before = [for_file(WEIGHTS, stop_after(10))]
    fault = failed(fetch)
    assert (fault.reason, len(hub.ranges(WEIGHTS))) == ("network", ATTEMPTS)


def without_ranges(request: Request) -> bool:
    assert request.data is not None
    return request.answer(200, request.data)


def test_a_download_from_a_server_without_ranges_starts_over(hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    hub.add("org/tiny", tiny)
    hub.before = [for_file(WEIGHTS, stop_after(5000), times=1), for_file(WEIGHTS, without_ranges)]
    assert resolve(fetch()).weights_digest == resolve(tiny_path("llama")).weights_digest


def other_range(request: Request) -> bool:
    assert request.data is not None
    size = len(request.data)
    return request.answer(206, request.data[1:], Content_Range=f"bytes 1-{size - 1}/{size}")


@pytest.mark.parametrize("odd", [other_range, status(416), status(206), lambda r: r.answer(206, b"x", Content_Range="bytes x")])
def test_a_range_that_was_not_requested_is_discarded(odd: Reply, hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    hub.add("org/tiny", tiny)
    hub.before = [for_file(WEIGHTS, stop_after(5000), times=1), for_file(WEIGHTS, odd, times=1)]
    assert resolve(fetch()).weights_digest == resolve(tiny_path("llama")).weights_digest


def longer(request: Request) -> bool:
    assert request.data is not None
    return request.answer(200, request.data + b"more")


def shorter(request: Request) -> bool:
    assert request.data is not None
    return request.answer(200, request.data[:-4])


def endless(request: Request) -> bool:
    """Sends no length, and more bytes than the file has."""
    assert request.data is not None
    request.handler.send_response(200)
    request.handler.send_header("Connection", "close")
    request.handler.end_headers()
    request.handler.wfile.write(request.data + b"and so on")
    request.hang_up()
    return True


@pytest.mark.parametrize("lie", [longer, shorter, endless, lambda r: r.answer(200, b"", Content_Length="18446744073709551616")])
def test_a_wrong_content_length_is_refused(lie: Reply, hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    hub.add("org/tiny", tiny)
    hub.before = [for_file(WEIGHTS, lie)]
    assert failed(fetch).reason == "changed"


def test_a_file_whose_size_changed_between_two_ranges_is_refused(hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    # given another size behind the range
    hub.add("org/tiny", tiny)

    def grown(request: Request) -> bool:
        size = len(tiny[WEIGHTS]) + 8
        rest = b"!" * (size - request.offset)
        return request.answer(206, rest, Content_Range=f"bytes {request.offset}-{size - 1}/{size}")

    hub.before = [for_file(WEIGHTS, stop_after(5000), times=1), for_file(WEIGHTS, grown)]
    assert failed(fetch).reason == "changed"


def test_damaged_first_bytes_cost_one_more_attempt(hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    # given a damaged beginning, found by the digest at the end
    hub.add("org/tiny", tiny)

    def damaged(request: Request) -> bool:
        assert request.data is not None
        request.answer(200, b"\0" * 5000, Content_Length=str(len(request.data)))
        request.hang_up()
        return True

    hub.before = [for_file(WEIGHTS, damaged, times=1)]
    assert resolve(fetch()).weights_digest == resolve(tiny_path("llama")).weights_digest
    assert hub.ranges(WEIGHTS) == [None, "bytes=5000-", None]


def test_a_file_whose_content_changed_between_two_ranges_is_refused(hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    # given other content of the same size from now on
    hub.add("org/tiny", tiny)
    other = bytes(len(tiny[WEIGHTS]))

    def changed(request: Request) -> bool:
        told = f"bytes {request.offset}-{len(other) - 1}/{len(other)}"
        code, more = (206, {"Content_Range": told}) if request.offset else (200, {})
        return request.answer(code, other[request.offset :], **more)

    hub.before = [for_file(WEIGHTS, stop_after(5000), times=1), for_file(WEIGHTS, changed)]
    assert failed(fetch).reason == "hash"
    assert hub.ranges(WEIGHTS) == [None, "bytes=5000-", None]


def test_wrong_bytes_after_a_broken_connection_are_refused(hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    hub.add("org/tiny", tiny)
    other, half = bytes(len(tiny[WEIGHTS])), len(tiny[WEIGHTS]) // 2

    def broken(request: Request) -> bool:
        if request.offset:
            told = f"bytes {request.offset}-{len(other) - 1}/{len(other)}"
            return request.answer(206, other[request.offset :], Content_Range=told)
        request.answer(200, other[:half], Content_Length=str(len(other)))
        request.hang_up()
        return True

    hub.before = [for_file(WEIGHTS, broken)]
    assert failed(fetch).reason == "hash"
    assert hub.ranges(WEIGHTS) == [None, f"bytes={half}-"] * 2


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer_config.json"])
def test_a_file_with_a_wrong_digest_is_refused_and_not_kept(name: str, hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    hub.add("org/tiny", tiny)

    def other(request: Request) -> bool:
        assert request.data is not None
        return request.answer(200, bytes([request.data[0] ^ 1]) + request.data[1:])

    hub.before = [for_file(name, other)]
    fault = failed(fetch)
    assert fault.reason == "hash"
    assert f"{name}: its digest is not the one that the repository names" in str(fault)
    hub.before, hub.asked = [], []
    fetch()
    assert hub.ranges(name) == [None]  # nothing was kept


def test_a_part_file_longer_than_its_file_starts_over(hub: LocalHub, fetch: Fetch, tiny: Files, shelf: Path) -> None:
    hub.add("org/tiny", tiny)
    part = shelf / ".fetching" / "org--tiny" / f"{oid(tiny[WEIGHTS])}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(tiny[WEIGHTS] + b"more")
    assert resolve(fetch()).weights_digest == resolve(tiny_path("llama")).weights_digest
    assert hub.ranges(WEIGHTS) == [None]


def test_compressed_content_is_refused(hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    hub.add("org/tiny", tiny)

    def packed(request: Request) -> bool:
        assert request.data is not None
        return request.answer(200, gzip.compress(request.data), Content_Encoding="gzip")

    hub.before = [for_file(WEIGHTS, packed)]
    assert "compressed" in str(failed(fetch))


def test_matching_bytes_that_are_no_safetensors_file_are_not_put_on_the_shelf(
    hub: LocalHub, fetch: Fetch, tiny: Files, shelf: Path
) -> None:
    hub.add("org/tiny", {**tiny, WEIGHTS: b"\xff" * 20_000})
    fault = failed(fetch)
    assert fault.reason == "unsuitable"
    assert "damaged safetensors file" in str(fault)
    assert f"({fault.kept:,} bytes are kept until `elsewise models remove org/tiny`)" in str(fault)
    assert [path.name for path in shelf.iterdir() if path.is_dir() and path.name not in (".fetching", ".digests")] == []
