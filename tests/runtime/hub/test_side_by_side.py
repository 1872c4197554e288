"""Parallel downloads of a repository's files: how many, the effect of one failure on the others, files with equal content."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from safetensors.numpy import load, save

from runtime.errors import DownloadError
from runtime.hub.child_protocol import DownloadProgress
from runtime.hub.download import AT_ONCE
from runtime.hub.partial_downloads import unfinished_downloads
from runtime.shelf.model_shelf import ModelShelf
from runtime.shelf.source import resolve
from tests.runtime.hub.conftest import Fetch
from tests.runtime.hub.local_hub import PATIENCE_SECONDS, Files, LocalHub, Request, for_file, held, once, status, stop_after

SHARDS = 7


def named(index: int) -> str:
    return f"model-{index + 1:05}-of-{SHARDS:05}.safetensors"


@pytest.fixture
def sharded(tiny: Files) -> Files:
    """The tiny model with its weights in shards."""
    tensors = load(tiny.pop("model.safetensors"))
    parts: list[list[str]] = [sorted(tensors)[index::SHARDS] for index in range(SHARDS)]
    table = {name: named(index) for index, part in enumerate(parts) for name in part}
    files = {named(index): save({name: tensors[name] for name in part}) for index, part in enumerate(parts)}
    return {**tiny, **files, "model.safetensors.index.json": json.dumps({"weight_map": table}).encode()}


def test_three_files_are_fetched_at_once_and_no_more(hub: LocalHub, fetch: Fetch, sharded: Files) -> None:
    # given a hub that answers a shard only once the maximum number is requested
    hub.add("org/tiny", sharded)
    lock, full = threading.Lock(), threading.Event()
    now, most = 0, 0

    def together(request: Request) -> bool:
        nonlocal now, most
        if not request.path.endswith(".safetensors"):
            return False
        with lock:
            now += 1
            most = max(most, now)
            if now == AT_ONCE:
                full.set()
        assert full.wait(PATIENCE_SECONDS)
        with lock:
            now -= 1
        return False

    hub.before = [together]
    # then
    name = fetch()
    assert most == AT_ONCE == 3
    assert len(ModelShelf().open(name).weights) == SHARDS
    assert sorted(hub.fetched()) == sorted(name for name in sharded if name in hub.fetched())  # each once


def test_a_failing_file_stops_the_others_and_keeps_their_bytes(
    hub: LocalHub, fetch: Fetch, sharded: Files, shelf: Path, waits: list[float]
) -> None:
    # given one shard that stalls halfway, and another that is refused after that
    hub.add("org/tiny", sharded)
    half = len(sharded[named(0)]) // 2

    def half_is_here() -> bool:
        return any(path.stat().st_size == half for path in shelf.rglob("*.part"))

    refused = once(half_is_here, status(404))
    hub.before = [for_file(named(0), held), for_file(named(1), refused)]
    # when
    with pytest.raises(DownloadError, match=rf"{named(1)}: not there \(HTTP 404\) \([\d,]+ bytes are kept") as fault:
        fetch()
    # then the fetch did not wait for the stalled shard, and its bytes are kept
    assert waits == []
    assert fault.value.kept == unfinished_downloads()[0].kept >= half
    assert ModelShelf().models() == []
    hub.before, hub.asked = [], []
    fetch()
    assert hub.ranges(named(0)) == [f"bytes={half}-"]


def test_interrupted_parallel_downloads_are_all_resumed(
    hub: LocalHub, fetch: Fetch, sharded: Files, steps: list[DownloadProgress]
) -> None:
    hub.add("org/tiny", sharded)
    hub.before = [for_file(named(index), stop_after(100 + index), times=2) for index in range(SHARDS)]
    hub.before.append(for_file("tokenizer.json", status(429), times=1))
    name = fetch()
    for index in range(SHARDS):
        assert hub.ranges(named(index)) == [None, f"bytes={100 + index}-", f"bytes={2 * (100 + index)}-"]
    assert resolve(name).weights_digest
    whole = [step for step in steps if step.state == "fetch" and step.total]
    assert [step.done for step in whole] == sorted(step.done for step in whole)
    assert whole[-1].done == whole[-1].total
    ends = {step.file: step.file_done for step in whole}
    assert ends == {file: len(sharded[file]) for file in ends}


def test_two_files_of_equal_content_are_fetched_once(
    hub: LocalHub, fetch: Fetch, tiny: Files, steps: list[DownloadProgress]
) -> None:
    same = {"special_tokens_map.json": b'{"a": 1}', "added_tokens.json": b'{"a": 1}'}
    hub.add("org/tiny", {**tiny, **same})
    folder = resolve(fetch()).path
    assert {name: (folder / name).read_bytes() for name in same} == same
    assert len([name for name in hub.fetched() if name in same]) == 1
    assert {step.file for step in steps} >= set(same)
    assert [step.done for step in steps if step.state == "fetch"][-1] == steps[-1].total


def test_two_files_of_equal_content_are_installed_on_a_disk_without_links(
    hub: LocalHub, fetch: Fetch, tiny: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.link", without)
    same = {"special_tokens_map.json": b'{"a": 1}', "added_tokens.json": b'{"a": 1}'}
    hub.add("org/tiny", {**tiny, **same})
    folder = resolve(fetch()).path
    assert {name: (folder / name).read_bytes() for name in same} == same
