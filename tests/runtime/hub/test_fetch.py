"""Fetching a model from a hub: which files are taken, under which name, and how a stopped download resumes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download

from runtime.errors import DownloadError, ModelLoadError
from runtime.hub.child_protocol import DownloadProgress, HubId
from runtime.hub.download import RepositoryDownload
from runtime.hub.partial_downloads import discard_download, unfinished_downloads
from runtime.loading.integrity import read_manifest
from runtime.shelf.model_shelf import ModelShelf
from runtime.shelf.source import resolve
from tests.runtime.hub.conftest import Fetch
from tests.runtime.hub.local_hub import LARGE, Files, LocalHub, Request, for_file, once, running, status, stop_after
from tests.tiny_models import tiny_path

WEIGHTS = "model.safetensors"
TAKEN = {WEIGHTS, "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}


def remains(shelf: Path) -> list[str]:
    """Files of unfinished downloads."""
    return sorted(str(path.relative_to(shelf)) for path in (shelf / ".fetching").rglob("*") if path.is_file())


def are_here(count: int) -> bool:
    """Whether at least `count` bytes of a download are kept."""
    return any(note.kept >= count for note in unfinished_downloads())


def small(tiny: Files) -> int:
    """Bytes of all fetched files except the weights."""
    return sum(len(tiny[name]) for name in TAKEN - {WEIGHTS})


def test_a_model_is_fetched_and_loads(hub: LocalHub, fetch: Fetch, tiny: Files, shelf: Path) -> None:
    # given
    commit = hub.add("org/tiny", tiny)
    # when
    name = fetch("org/tiny")
    # then: its weights are unchanged, its name has the commit, and no other file came along
    assert name == f"org/tiny@{commit[:12]}"
    folder = resolve("org/tiny").path
    assert {path.name for path in folder.iterdir() if path.is_file()} == TAKEN | {"elsewise.json"}
    assert set(hub.fetched()) == TAKEN
    assert resolve(name).weights_digest == resolve(tiny_path("llama")).weights_digest
    entry = ModelShelf().find("org/tiny")
    assert (entry.commit, entry.format, entry.source, entry.complete) == (commit, "download", "org/tiny@main", True)
    assert remains(shelf) == []
    # and its manifest names the template
    manifest = read_manifest(folder)
    assert manifest is not None
    assert manifest.template_digest == hashlib.sha256(tiny["chat_template.jinja"]).hexdigest()


def test_folders_of_fetched_models_are_accessible_to_their_owner_alone(
    hub: LocalHub, fetch: Fetch, tiny: Files, shelf: Path
) -> None:
    hub.add("org/tiny", tiny)
    fetch()
    folders = [path for path in shelf.rglob("*") if path.is_dir()]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}


def test_the_real_client_finds_nothing_left_to_fetch(hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    # given a fetched model, and the same files requested by huggingface_hub into that folder
    hub.add("org/tiny", tiny)
    fetch()
    folder = resolve("org/tiny").path
    hub.asked.clear()
    planned = snapshot_download("org/tiny", local_dir=folder, allow_patterns=sorted(TAKEN), endpoint=hub.address, dry_run=True)
    # then
    assert {file.filename for file in planned} == TAKEN
    assert [file.filename for file in planned if file.will_download] == []
    snapshot_download("org/tiny", local_dir=folder, allow_patterns=sorted(TAKEN), endpoint=hub.address)
    assert hub.fetched() == []


@pytest.mark.parametrize("revision", ["v1", "refs/pr/3", "COMMIT", "SHORT"])
def test_every_name_of_a_revision_finds_the_same_commit(revision: str, hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    # given two commits, of which the older one has other names
    commit = hub.add("org/tiny", tiny)
    hub.repositories["org/tiny"].names |= {"v1": commit, "refs/pr/3": commit, commit[:9]: commit}
    hub.add("org/tiny", {**tiny, "generation_config.json": b"{}"})
    asked = {"COMMIT": commit, "SHORT": commit[:9]}.get(revision, revision)
    # then
    name = fetch(f"org/tiny@{asked}")
    assert name == f"org/tiny@{commit[:12]}"
    if "/" not in asked:
        assert resolve(f"org/tiny@{asked}").path == resolve(name).path


def test_two_commits_are_installed_side_by_side(hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    hub.add("org/tiny", tiny)
    first = fetch()
    hub.add("org/tiny", {**tiny, "generation_config.json": b'{"temperature": 0.5}'})
    second = fetch()
    assert {entry.name for entry in ModelShelf().models()} == {first, second}
    with pytest.raises(ModelLoadError, match="is here in 2 revisions; choose one"):
        resolve("org/tiny")


def test_an_installed_model_is_not_fetched_again(hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    hub.add("org/tiny", tiny)
    name = fetch()
    hub.asked.clear()
    assert fetch() == name
    assert set(hub.fetched()) <= {"config.json"}  # needed to tell a model from an adapter


def test_a_damaged_download_is_repaired_by_fetching_again(hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    hub.add("org/tiny", tiny)
    name = fetch()
    weights = resolve(name).path / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelLoadError, match=r"fetch it again: `elsewise models fetch org/tiny@[0-9a-f]{40}"):
        resolve(name)
    assert fetch() == name
    assert resolve(name).weights_digest == resolve(tiny_path("llama")).weights_digest


def test_only_the_weight_shards_named_by_the_index_are_fetched(hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    shard = "model-00001-of-00001.safetensors"
    index = json.dumps({"weight_map": {"a": shard}}).encode()
    weights = tiny.pop(WEIGHTS)
    hub.add("org/tiny", {**tiny, shard: weights, "model.safetensors.index.json": index, "consolidated.safetensors": b"x" * 50})
    fetch()
    assert shard in hub.fetched()
    assert "consolidated.safetensors" not in hub.fetched()


def test_a_download_resumes_where_it_stopped(
    hub: LocalHub, fetch: Fetch, tiny: Files, shelf: Path, steps: list[DownloadProgress]
) -> None:
    # given a server that ends halfway and then refuses
    hub.add("org/tiny", tiny)
    half = len(tiny[WEIGHTS]) // 2
    refused = once(lambda: are_here(small(tiny) + half), status(403))
    hub.before = [for_file(WEIGHTS, stop_after(half), times=1), for_file(WEIGHTS, refused)]
    with pytest.raises(DownloadError, match="refuses") as stopped:
        fetch()
    # then the received bytes are kept and counted, and nothing is listed as a model
    assert stopped.value.kept > half
    assert f"({stopped.value.kept:,} bytes are kept; `elsewise models fetch org/tiny@main` goes on with them)" in str(
        stopped.value
    )
    assert ModelShelf().models() == []
    [note] = unfinished_downloads()
    assert (note.repository, note.kept) == ("org/tiny", stopped.value.kept)
    # when it is fetched again later
    hub.before, hub.asked = [], []
    steps.clear()
    fetch()
    # then only the rest is requested
    assert hub.ranges(WEIGHTS) == [f"bytes={half}-"]
    assert set(hub.fetched()) == {WEIGHTS}
    assert unfinished_downloads() == []
    assert min(step.done for step in steps if step.file == WEIGHTS and step.state == "fetch") >= half
    assert next(step.done for step in steps if step.total) == stopped.value.kept  # of all files, from the first report on


def test_files_shared_by_two_commits_are_fetched_once(hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    # given a stopped download, and a branch that moved meanwhile
    hub.add("org/tiny", tiny)
    refused = once(lambda: are_here(small(tiny) + 5000), status(404))
    hub.before = [for_file(WEIGHTS, stop_after(5000), times=1), for_file(WEIGHTS, refused)]
    with pytest.raises(DownloadError, match="not there"):
        fetch()
    second = hub.add("org/tiny", {**tiny, "generation_config.json": b"{}"})
    hub.before, hub.asked = [], []
    # then
    assert fetch() == f"org/tiny@{second[:12]}"
    assert sorted(set(hub.fetched())) == ["generation_config.json", WEIGHTS]
    assert hub.ranges(WEIGHTS) == ["bytes=5000-"]


def test_progress_counts_each_file_and_the_total(
    hub: LocalHub, fetch: Fetch, tiny: Files, steps: list[DownloadProgress]
) -> None:
    hub.add("org/tiny", tiny)
    fetch()
    total = sum(len(tiny[name]) for name in TAKEN)
    whole = [step for step in steps if step.state == "fetch" and step.total]
    assert {step.total for step in whole} == {total}
    assert [step.done for step in whole] == sorted(step.done for step in whole)
    assert whole[-1].done == total
    assert {step.file for step in whole} == TAKEN
    assert {(step.file, step.file_total) for step in whole} == {(name, len(tiny[name])) for name in TAKEN}
    assert (steps[0].state, steps[-1].state) == ("look up", "install")


def test_a_plan_fetches_no_weights_and_leaves_nothing(hub: LocalHub, tiny: Files, shelf: Path, tmp_path: Path) -> None:
    # given
    commit = hub.add("org/tiny", tiny)
    # when
    plan = RepositoryDownload(HubId.parse("org/tiny"), lambda step: None, endpoint=hub.address).plan(tmp_path)
    # then
    assert hub.fetched() == ["config.json"]
    assert {file.name: file.size for file in plan.files} == {name: len(tiny[name]) for name in TAKEN}
    assert (plan.commit, plan.name, plan.kept, plan.here) == (commit, f"org/tiny@{commit[:12]}", 0, "")
    assert plan.bytes - plan.weights == sum(len(tiny[name]) for name in TAKEN - {WEIGHTS})
    assert set(plan.left) == {"README.md", "pytorch_model.bin", "modeling_tiny.py"}
    assert plan.config["model_type"] == "llama"
    assert not shelf.exists()


def test_an_unfinished_download_can_be_discarded(hub: LocalHub, fetch: Fetch, tiny: Files, shelf: Path) -> None:
    hub.add("org/tiny", tiny)
    hub.before = [for_file(WEIGHTS, status(404))]
    with pytest.raises(DownloadError) as stopped:
        fetch()
    assert discard_download("org/other") is None
    assert discard_download("org/tiny") == stopped.value.kept > 0
    assert (remains(shelf), unfinished_downloads(), discard_download("org/tiny")) == ([], [], None)


def test_the_fetched_files_include_small_and_large_ones(tiny: Files) -> None:
    assert {len(data) >= LARGE for name, data in tiny.items() if name in TAKEN} == {True, False}


def test_the_token_is_sent_to_the_hub_and_to_no_other_server(
    hub: LocalHub, fetch: Fetch, tiny: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a private repository whose weights are on another server
    hub.add("org/tiny", tiny)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    seen: list[tuple[str, str | None]] = []
    with running() as store:

        def stored(request: Request) -> bool:
            seen.append(("store", request.handler.headers.get("Authorization")))
            rest = tiny[WEIGHTS][request.offset :]
            return request.answer(200, rest)

        def moved(request: Request) -> bool:
            return request.answer(302, b"", Location=f"{store.address}/blob")

        def noted(request: Request) -> bool:
            seen.append(("hub", request.handler.headers.get("Authorization")))
            return False

        store.before = [stored]
        hub.before = [noted, for_file(WEIGHTS, moved)]
        fetch()
    assert set(seen) == {("hub", "Bearer hf_secret"), ("store", None)}


@pytest.mark.parametrize(
    ("tags", "licence"),
    [
        (["text-generation", "license:apache-2.0", "region:us"], "apache-2.0"),
        ([], ""),
        (["license:a\x1b[31m"], ""),
        ([7, None, "license:" + "x" * 1000], "x" * 40),
    ],
)
def test_the_licence_is_taken_from_the_tags_and_cleaned(
    tags: list[object], licence: str, hub: LocalHub, tiny: Files, steps: list[DownloadProgress], tmp_path: Path
) -> None:
    hub.add("org/tiny", tiny)
    hub.tags = tags
    plan = RepositoryDownload(HubId.parse("org/tiny"), steps.append, endpoint=hub.address).plan(tmp_path)
    assert (plan.licence, plan.context) == (licence, 4096)
