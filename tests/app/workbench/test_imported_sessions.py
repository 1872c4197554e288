"""Imported sessions: the fingerprint decides whether KV can be used, and a portable file has the snapshot to resume."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from app.workbench.transfer.import_check import foreign_models
from app.workbench.transfer.transfers import NO_SNAPSHOT
from runtime import LanguageModel, ModelInfo, Snapshot, SnapshotMismatchError, block_keys, load
from runtime.backends.fake import Behaviour
from storage import PortableFile, SessionStore
from tests.app.workbench.scene import Engine, Scene, until
from tests.runtime.adapters.toys import toy_adapter
from tests.tiny_models import tiny_path


def heard(_done: int, _total: int) -> None:
    """Ignores the progress."""


def exported(folder: Path, *, options: dict[str, Any] | None = None, stopped: bool = False) -> tuple[Path, list[int]]:
    """A portable file of a session of one answer, and the ids of its path."""

    async def out() -> list[int]:
        here = Scene.open(folder / "here.db", Engine(options=options or {}))
        if stopped:
            here.engine.holds_after = 3
        session_id = await (here.stopped_after(3) if stopped else here.asked())
        ids = await here.path_ids(session_id)
        said = await here.workbench.transfers.export(session_id, "portable", folder / "trip.elsewise", heard)
        assert said == ""
        await here.workbench.close()
        return ids

    return folder / "trip.elsewise", asyncio.run(out())


def snapshot_in(file: Path) -> Snapshot:
    with closing(PortableFile(file)) as portable:
        return Snapshot.from_mapping(portable.snapshot())


def test_a_portable_file_can_be_resumed_and_its_answer_continues(tmp_path: Path) -> None:
    file, ids = exported(tmp_path, stopped=True)
    snapshot = snapshot_in(file)
    assert list(snapshot.ids) == ids
    assert [mark.label for mark in snapshot.marks] == ["user", "assistant"]
    assert ("user", "hello") in snapshot.messages
    with load("x", backend="fake") as model:
        assert snapshot.text == b"".join(model.decode_token(token) for token in ids)
        with model.resume(snapshot) as session:
            assert session.snapshot().generation == snapshot.generation
            said = [record.token_id for record in session.go_on_sync()]
            assert len(said) == 12 - 3
            assert session.explain_context().resident == len(ids) + len(said)


@pytest.mark.parametrize(
    ("made", "named"),
    [({"source": (Behaviour(recurrent=True), None)}, "model: "), ({"context_length": 4096}, "context_length: ")],
)
def test_another_model_or_setting_is_refused_by_name(tmp_path: Path, made: dict[str, Any], named: str) -> None:
    file, _ = exported(tmp_path)
    source = made.pop("source", "x")
    with load(source, backend="fake", **made) as model, pytest.raises(SnapshotMismatchError, match=named):
        model.resume(snapshot_in(file))


def notes(folder: Path, file: Path, engine: Engine | None) -> list[str]:
    """The notes of an import into a folder in which that engine ran before (None: no engine did)."""

    async def take() -> list[str]:
        there = Scene.open(folder / "there.db", engine or Engine())
        if engine is not None:
            await there.asked("something else")
        result = await there.workbench.transfers.import_file(file, heard)
        await there.workbench.close()
        return list(result.notes)

    return asyncio.run(take())


def test_an_import_has_no_note_if_the_same_model_ran_here(tmp_path: Path) -> None:
    file, _ = exported(tmp_path)
    assert notes(tmp_path, file, Engine()) == []


def test_a_model_of_the_same_name_with_another_fingerprint_is_another_model(tmp_path: Path) -> None:
    """Other weights, the same tokens: named by its fingerprint, with all differences."""
    file, _ = exported(tmp_path)
    [note] = notes(tmp_path, file, Engine(source=(Behaviour(recurrent=True), None)))
    assert "which has not run here" in note
    assert "uses the same tokens and can continue" in note
    assert "KV is computed again (model: " in note


def test_an_import_without_any_known_model_names_the_ways_on(tmp_path: Path) -> None:
    file, _ = exported(tmp_path)
    [note] = notes(tmp_path, file, None)
    assert "which is not on this machine (fingerprint " in note
    assert "choose that model in the model menu; to continue with another one" in note
    assert "choose 'open as text'" in note


def test_a_name_on_the_shelf_does_not_prove_that_the_model_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, _ = exported(tmp_path)
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "models"))
    shutil.copytree(tiny_path("llama"), tmp_path / "models" / "fake")
    [note] = notes(tmp_path, file, None)
    assert "loading it shows whether it is the same" in note


def test_an_imported_file_does_not_count_as_a_model_that_ran_here(tmp_path: Path) -> None:
    """The imported file names its models; only a loaded model counts as having run."""
    file, _ = exported(tmp_path)
    assert len(notes(tmp_path, file, None)) == 1
    store = SessionStore.open(tmp_path / "there.db")
    nodes = asyncio.run(_nodes(store))
    store.close_sync()
    assert nodes


async def _nodes(store: SessionStore) -> list[str]:
    [row] = await store.sessions()
    return await foreign_models(store, row.id)


class Renamed:
    """The same model under another fingerprint."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.info: ModelInfo = replace(model.info, kv_fingerprint="another")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def test_a_session_under_adapters_is_resumed_with_equal_weights_under_any_name(tmp_path: Path) -> None:
    folder = toy_adapter(tmp_path / "pirate", 1)

    async def out() -> None:
        here = Scene.open(tmp_path / "here.db", Engine())
        session_id = await here.new()
        await here.workbench.setup.add_adapter(session_id, str(folder))
        await here.workbench.answers.send(session_id, "hello")
        assert await foreign_models(here.workbench.services.store, session_id) == []
        here.engine.holds_after = 3
        answer = asyncio.create_task(here.workbench.answers.regenerate(session_id, (await here.last(session_id)).node_id))
        await until(lambda: here.arrived(session_id) >= 12 + 3)
        here.workbench.answers.stop(session_id)
        await answer
        await here.workbench.transfers.export(session_id, "portable", tmp_path / "trip.elsewise", heard)
        await here.workbench.close()

    asyncio.run(out())
    snapshot = snapshot_in(tmp_path / "trip.elsewise")
    with load("x", backend="fake") as model:
        with pytest.raises(SnapshotMismatchError, match=r"adapters that are not loaded: no adapter 'pirate-.*_lora' is loaded"):
            model.resume(snapshot)
        name = snapshot.manifest.adapters[0][0].removesuffix("_lora")
        model.add_adapter(toy_adapter(tmp_path / "other", 2), name)
        model.load_adapter(name)
        with pytest.raises(SnapshotMismatchError, match=rf"adapters: {name}_lora x 1 .*, {name}_lora x 1 "):
            model.resume(snapshot)
        model.add_adapter(folder, "buccaneer")
        model.load_adapter("buccaneer")
        names = block_keys(model.info.kv_fingerprint, snapshot.ids, (), model.info.uses_under(["buccaneer"]))
        assert snapshot.blocks == tuple(name.hex() for name in names)
        with model.resume(snapshot) as session:
            rest = [record.token_id for record in session.go_on_sync()]
            assert session.manifest.stack == (("buccaneer_lora", 1.0),)
        assert snapshot.generation is not None
        options = snapshot.generation.options
        whole = model.generate_sync(snapshot.ids[: snapshot.generation.start], replace(options, adapters=(("buccaneer", 1.0),)))
        assert [*snapshot.ids[snapshot.generation.start :], *rest] == [record.token_id for record in whole]


def test_a_path_of_two_models_has_no_snapshot(tmp_path: Path) -> None:
    async def out() -> None:
        here = Scene.open(tmp_path / "here.db", Engine())
        session_id = await here.asked()
        await here.workbench.services.supervisor.close()

        async def start(*_: object, **__: object) -> LanguageModel:
            return cast("LanguageModel", Renamed(await asyncio.to_thread(load, "x", backend="fake")))

        here.workbench.services.supervisor.start_engine = start
        await here.workbench.answers.send(session_id, "two")
        said = await here.workbench.transfers.export(session_id, "portable", tmp_path / "two.elsewise", heard)
        assert said == NO_SNAPSHOT
        assert await here.workbench.transfers.export(session_id, "json", tmp_path / "two.json", heard) == ""
        await here.workbench.close()

    asyncio.run(out())
    with closing(PortableFile(tmp_path / "two.elsewise")) as portable:
        assert portable.snapshot() is None
