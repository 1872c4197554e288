"""Downloads of the window, from a hub on loopback: progress, paused, resumed, cancelled, failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime import ModelShelf, unfinished_downloads
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Scene, until
from tests.runtime.adapters.toys import toy_adapter
from tests.runtime.hub.local_hub import Files, LocalHub, for_file, held, running, status
from tests.tiny_models import tiny_path
from ui import DownloadsChanged, DownloadState, DownloadView, ModelsChanged, Refusal

WEIGHTS = "model.safetensors"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with running() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        yield server


@pytest.fixture(scope="session")
def tiny() -> Files:
    return {path.name: path.read_bytes() for path in tiny_path("llama").iterdir() if path.is_file()} | {"README.md": b"# hi"}


def told(s: Scene) -> list[DownloadView]:
    """The last progress that the window received."""
    news = [event for event in s.events if isinstance(event, DownloadsChanged)]
    return list(news[-1].downloads) if news else []


def is_in(s: Scene, state: DownloadState) -> bool:
    return [view.state for view in told(s)] == [state]


def half_is_here(tiny: Files) -> bool:
    return any(note.kept >= note.total - len(tiny[WEIGHTS]) // 2 - 1 for note in unfinished_downloads())


@pytest.mark.slow
def test_a_model_is_planned_and_fetched(play: Play, hub: LocalHub, tiny: Files) -> None:
    commit = hub.add("org/tiny", tiny)

    async def scene(s: Scene) -> None:
        # given: no request to the hub before the person asks
        assert await s.workbench.shelf.list() == []
        assert hub.asked == []
        # when
        plan = await s.workbench.shelf.plan("org/tiny")
        # then
        assert (plan.repository, plan.commit, plan.here, plan.kind) == ("org/tiny", commit, False, "model")
        assert dict(plan.files)[WEIGHTS] == len(tiny[WEIGHTS])
        assert plan.size == sum(size for _, size in plan.files)
        assert WEIGHTS not in hub.fetched()
        assert plan.fit is not None
        assert (plan.fit.fits, plan.fit.context, plan.context) == (True, 4096, 4096)
        more = await s.workbench.shelf.fit(plan, 8192)
        assert more is not None
        assert (more.context, more.kv) == (8192, 2 * plan.fit.kv)
        # when
        s.workbench.shelf.download(plan.pinned)
        s.workbench.shelf.download(plan.pinned)  # once more changes nothing
        await until(lambda: is_in(s, DownloadState.DONE))
        # then
        (done,) = told(s)
        assert (done.name, done.kind, done.done) == (plan.name, "model", done.total)
        assert ModelsChanged() in s.events
        (model,) = await s.workbench.shelf.list()
        assert (model.name, model.context, model.problem, model.loaded) == (plan.name, 4096, "", False)
        assert len(hub.ranges(WEIGHTS)) == 1
        # it is only not reported any more
        assert await s.workbench.shelf.cancel_download("org/tiny") == 0
        assert told(s) == []
        assert len(ModelShelf().models()) == 1

    play(scene)


@pytest.mark.slow
def test_a_paused_download_is_resumed_after_a_restart(play: Play, hub: LocalHub, tiny: Files) -> None:
    commit = hub.add("org/tiny", tiny)
    hub.before = [for_file(WEIGHTS, held, times=1)]

    async def first(s: Scene) -> None:
        s.workbench.shelf.download("org/tiny")
        await until(lambda: half_is_here(tiny))
        await until(lambda: told(s)[0].file and told(s)[0].total)
        await s.workbench.shelf.pause_download("org/tiny")
        (view,) = told(s)
        assert (view.state, view.done) == (DownloadState.PAUSED, unfinished_downloads()[0].kept)
        assert 0 < view.done < view.total

    async def second(s: Scene) -> None:
        await s.workbench.shelf.list()
        (view,) = told(s)
        assert (view.state, view.done) == (DownloadState.PAUSED, unfinished_downloads()[0].kept)
        s.workbench.shelf.download("org/tiny")
        await until(lambda: is_in(s, DownloadState.DONE))
        assert hub.ranges(WEIGHTS) == [None, f"bytes={len(tiny[WEIGHTS]) // 2}-"]
        assert told(s)[0].name == f"org/tiny@{commit[:12]}"  # the revision of its start, also if the branch has moved

    play(first)
    hub.add("org/tiny", {**tiny, "generation_config.json": b"{}"})
    play(second)


@pytest.mark.slow
def test_closing_the_app_keeps_the_part_that_has_arrived(play: Play, hub: LocalHub, tiny: Files) -> None:
    hub.add("org/tiny", tiny)
    hub.before = [for_file(WEIGHTS, held)]

    async def scene(s: Scene) -> None:
        s.workbench.shelf.download("org/tiny")
        await until(lambda: half_is_here(tiny))

    play(scene)  # which closes the workbench, and finds no task left
    assert half_is_here(tiny)


@pytest.mark.slow
def test_a_cancelled_download_leaves_nothing(play: Play, hub: LocalHub, tiny: Files) -> None:
    hub.add("org/tiny", tiny)
    hub.before = [for_file(WEIGHTS, held)]

    async def scene(s: Scene) -> None:
        s.workbench.shelf.download("org/tiny")
        await until(lambda: half_is_here(tiny))
        freed = await s.workbench.shelf.cancel_download("org/tiny")
        assert freed > len(tiny[WEIGHTS]) // 2 - 1
        assert told(s) == []
        assert unfinished_downloads() == []
        assert await s.workbench.shelf.list() == []

    play(scene)


@pytest.mark.slow
def test_a_failure_names_its_cause_and_the_part_that_was_kept(play: Play, hub: LocalHub, tiny: Files) -> None:
    hub.add("org/tiny", tiny)
    hub.before = [for_file(WEIGHTS, status(403), times=1)]

    async def scene(s: Scene) -> None:
        s.workbench.shelf.download("org/tiny")
        await until(lambda: is_in(s, DownloadState.FAILED))
        (view,) = told(s)
        assert "the hub refuses (HTTP 403)" in view.note
        assert "are kept" not in view.note
        assert view.done == unfinished_downloads()[0].kept > 0
        # when it is tried again
        s.workbench.shelf.download("org/tiny")
        await until(lambda: is_in(s, DownloadState.DONE))

    play(scene)


@pytest.mark.slow
def test_a_subscriber_can_restart_a_download_from_the_event_of_its_end(play: Play, hub: LocalHub, tiny: Files) -> None:
    hub.add("org/tiny", tiny)
    hub.before = [for_file(WEIGHTS, status(403), times=1)]

    async def scene(s: Scene) -> None:
        s.workbench.subscribe(lambda _: s.workbench.shelf.download("org/tiny") if is_in(s, DownloadState.FAILED) else None)
        s.workbench.shelf.download("org/tiny")
        await until(lambda: is_in(s, DownloadState.DONE))

    play(scene)
    assert hub.fetched().count(WEIGHTS) == 2


@pytest.mark.slow
def test_an_internal_error_ends_a_download_that_can_be_tried_again(
    play: Play, hub: LocalHub, tiny: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hub.add("org/tiny", tiny)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("broken fetch")

    async def scene(s: Scene) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("runtime.fetch_any", broken)
            s.workbench.shelf.download("org/tiny")
            await until(lambda: is_in(s, DownloadState.FAILED))
        assert told(s)[0].note == "broken fetch"
        s.workbench.shelf.download("org/tiny")
        await until(lambda: is_in(s, DownloadState.DONE))

    play(scene)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == ["the download of org/tiny failed"]
    caplog.clear()


@pytest.mark.slow
def test_a_model_that_no_engine_runs_is_refused_before_it_is_fetched(play: Play, hub: LocalHub, tiny: Files) -> None:
    config = tiny["config.json"].rstrip().removesuffix(b"}")
    hub.add("org/cuda", {**tiny, "config.json": config + b', "quantization_config": {"quant_method": "gptq", "bits": 4}}'})
    hub.add("org/old", {"config.json": tiny["config.json"], "pytorch_model.bin": b"\x80\x04K\x01."})

    async def scene(s: Scene) -> None:
        with pytest.raises(Refusal, match="quantised with gptq, which needs CUDA"):
            await s.workbench.shelf.plan("org/cuda")
        with pytest.raises(Refusal, match=r"only pickled weights .* can run code"):
            await s.workbench.shelf.plan("org/old")
        with pytest.raises(Refusal, match="no repository"):
            await s.workbench.shelf.plan("no name at all")
        assert told(s) == []

    play(scene)
    assert not {WEIGHTS, "pytorch_model.bin"} & set(hub.fetched())


@pytest.mark.slow
def test_an_adapter_is_added_to_the_stack_by_its_id(play: Play, hub: LocalHub, tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in toy_adapter(tmp_path / "toy", 1).iterdir()}
    commit = hub.add("me/pirate", files)

    async def scene(s: Scene) -> None:
        session_id = await s.asked("hi")
        setup = await s.workbench.setup.get_adapter(session_id, " me/pirate ")
        (line,) = setup.adapters
        assert (line.choice.name, line.loaded) == (f"me/pirate@{commit[:12]}", True)
        assert [(view.state, view.kind) for view in told(s)] == [(DownloadState.DONE, "adapter")]
        (shelved,) = await s.workbench.shelf.list()
        assert (shelved.kind, shelved.folder) == ("adapter", line.choice.folder)
        # in another session the hub gets no request
        other, asked = await s.asked("ho"), len(hub.asked)
        again = await s.workbench.setup.get_adapter(other, "me/pirate")
        assert again.adapters[0].choice.folder == line.choice.folder
        assert len(hub.asked) == asked
        # one that does not exist is refused, and leaves no entry
        with pytest.raises(Refusal, match="no such repository"):
            await s.workbench.setup.get_adapter(session_id, "me/nobody")
        assert [view.repository for view in told(s)] == ["me/pirate"]

    play(scene)


@pytest.mark.slow
def test_a_search_marks_models_that_can_run_here(play: Play, hub: LocalHub, tiny: Files) -> None:
    config = tiny["config.json"].rstrip().removesuffix(b"}")
    hub.add("org/tiny", tiny)
    hub.add("org/tiny-cuda", {**tiny, "config.json": config + b', "quantization_config": {"quant_method": "gptq", "bits": 4}}'})

    async def scene(s: Scene) -> None:
        found = {find.source: find for find in await s.workbench.shelf.search_hub("tiny")}
        assert found.keys() == {"org/tiny", "org/tiny-cuda"}
        assert (found["org/tiny"].problem, found["org/tiny"].kind) == ("", "model")
        assert "downloads last month" in found["org/tiny"].facts
        assert "needs CUDA" in found["org/tiny-cuda"].problem
        assert hub.fetched() == []
        with pytest.raises(Refusal):
            await s.workbench.shelf.search_hub("")

    play(scene)
