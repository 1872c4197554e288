"""A session goes out with its KV while the engine runs, and goes on elsewhere without computing it again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.portable_kv import carries_blocks, keys_of, take_from
from runtime import BlockOptions
from storage import SessionStore
from tests.app.workbench.scene import Engine, Scene
from ui import ExportKind, Refusal

TEXT = "hello, this is a message of some length, so that it is worth a look " * 3


def scene(folder: Path) -> Scene:
    folder.mkdir(exist_ok=True)
    engine = Engine()
    engine.options["blocks"] = BlockOptions("storage:open_blocks", str(folder / "blocks.db"), 1 << 30)
    made = Scene.open(folder / "s.db", engine)
    made.workbench.supervisor.options["blocks"] = {"path": str(folder / "blocks.db")}
    return made


def heard(_done: int, _total: int) -> None:
    """Nobody listens."""


@pytest.mark.parametrize("running", [True, False])
def test_it_is_warm_elsewhere(tmp_path: Path, running: bool) -> None:
    file = tmp_path / "trip.kv.elsewise"

    async def out() -> tuple[int, list[int]]:
        here = scene(tmp_path / "here")
        session_id = await here.asked(TEXT)
        path = await here.path_ids(session_id)
        model = here.workbench.supervisor.running
        assert model is not None
        saved = await model.save_blocks_async(path)
        if not running:
            await here.workbench.close()
            here = scene(tmp_path / "here")
        await here.workbench.export_session(session_id, ExportKind.WITH_KV, file, heard)
        await here.workbench.close()
        return saved.tokens, path

    async def elsewhere(tokens: int, path: list[int]) -> None:
        store = SessionStore.open(tmp_path / "there.db")
        imported = await store.import_file(file)
        keys = await keys_of(store, imported.sessions[0])
        await store.close()
        there = tmp_path / "there"
        there.mkdir()
        (tmp_path / "there.db").rename(there / "s.db")
        assert take_from(file, there / "blocks.db", keys) >= tokens // 64
        new = scene(there)
        view = await new.view(imported.sessions[0])
        assert await new.path_ids(view.session_id) == path
        await new.workbench.send(view.session_id, "and?")
        model = new.workbench.supervisor.running
        assert model is not None
        assert model.metrics().tokens_restored >= tokens // 64 * 64  # whole blocks at the least
        await new.workbench.close()

    tokens, path = asyncio.run(out())
    assert tokens > 64
    assert carries_blocks(file)
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []
    asyncio.run(elsewhere(tokens, path))


def test_a_block_file_that_fails_leaves_no_half_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "trip.kv.elsewise"
    file.write_bytes(b"mine")

    async def out() -> None:
        here = scene(tmp_path / "here")
        session_id = await here.asked(TEXT)

        def failing(*_: object) -> int:
            raise OSError("the disk is gone")

        monkeypatch.setattr("storage.blocks.file.BlockFile.copy_to", failing)
        with pytest.raises(Refusal, match="the disk is gone"):
            await here.workbench.export_session(session_id, ExportKind.WITH_KV, file, heard)
        await here.workbench.close()

    asyncio.run(out())
    assert file.read_bytes() == b"mine"
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []
