"""A session under an activated adapter keeps its KV like any other: pinned, on disk, reopened, exported."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from app.portable_kv import carries_blocks, keys_of
from app.workbench.kv.block_pins import PIN
from app.workbench.setup.session_adapters import engine_name
from runtime import LanguageModel, load
from tests.app.workbench.scene import Scene, rows, until
from tests.app.workbench.test_portable_kv import heard, scene
from tests.runtime.adapters.toys import toy_adapter
from ui import AdapterChoice, Refusal, Tier

LONG = "hello, this is a message of some length, so that it is worth a look "
TEXT = f"{LONG * 2} now judge: {LONG}"  # the invocation of the adapter is in the middle of a block


@pytest.fixture(scope="module")
def invocation() -> list[int]:
    with load("x", backend="fake") as model:
        return model.tokenize("judge:")


@pytest.fixture
def judge(tmp_path: Path, invocation: list[int]) -> Path:
    return toy_adapter(tmp_path / "judge", 3, invocation=invocation)


def running(s: Scene) -> LanguageModel:
    model = s.workbench.services.supervisor.running
    assert model is not None
    return model


def stack(s: Scene) -> tuple[tuple[str, float], ...]:
    return tuple((adapter.name, 1.0) for adapter in running(s).info.adapters)


async def asked(folder: Path, judge: Path, *, pinned: bool = False) -> tuple[int, list[int]]:
    """A session that was closed after an answer, and the part of its path whose KV was kept."""
    here = scene(folder)
    session_id = await here.new()
    await here.workbench.setup.add_adapter(session_id, str(judge))
    if pinned:
        await here.workbench.sessions.pin(session_id, True)
    await here.workbench.answers.send(session_id, TEXT)
    path = await here.path_ids(session_id)
    held = (await running(here).prefix_match_async(path, adapters=stack(here))).tokens
    await here.workbench.services.saver.close(20.0)
    await here.workbench.close()
    return session_id, path[:held]


def test_a_reopened_session_computes_only_new_tokens(tmp_path: Path, judge: Path) -> None:
    async def play() -> None:
        session_id, kept = await asked(tmp_path / "a", judge)
        again = scene(tmp_path / "a")
        await again.view(session_id)
        await again.workbench.answers.send(session_id, "and?")
        counted, path = running(again).metrics(), await again.path_ids(session_id)
        assert counted.tokens_restored == len(kept)
        assert counted.tokens_computed <= 1 + len(path) - len(kept)
        # and its largest edges name their adapters
        view = again.workbench.cache.view(session_id)
        assert view is not None
        assert {edge.adapters for edge in view.largest} == {"", "judge × 1"}
        await again.workbench.close()

    asyncio.run(play())


@pytest.mark.parametrize("running_first", [False, True])
def test_a_reopened_session_is_reported_as_on_disk_before_any_request(tmp_path: Path, judge: Path, running_first: bool) -> None:
    async def play() -> None:
        session_id, kept = await asked(tmp_path / "a", judge)
        again = scene(tmp_path / "a")
        if running_first:  # when it is opened after another session
            await again.asked("something else")
            await again.view(session_id)
        else:  # when the engine has started under it
            await again.view(session_id)
            again.workbench.models.warm_up()
        await until(lambda: again.workbench.status.tiers.get(Tier.DISK))
        assert stack(again) == ((engine_name(AdapterChoice(str(judge), "judge")), 1.0),)
        session = again.workbench.services.sessions.opened(session_id)
        assert session.stored == len(kept)
        # one whose adapter was deleted is cold, and nothing fails
        shutil.rmtree(judge)
        await again.workbench.close()
        last = scene(tmp_path / "a")
        await last.view(session_id)
        last.workbench.models.warm_up()
        await until(lambda: not len(last.workbench.services.tasks))
        assert (await last.last(session_id)).tier is Tier.COLD
        await last.workbench.close()

    asyncio.run(play())


def test_all_kept_blocks_of_a_pinned_session_are_pinned_after_a_restart_too(tmp_path: Path, judge: Path) -> None:
    async def play() -> None:
        session_id, kept = await asked(tmp_path / "a", judge, pinned=True)
        again = scene(tmp_path / "a")
        await again.workbench.services.supervisor.model()
        await until(lambda: not len(again.workbench.services.tasks))
        keys = set(await keys_of(again.store, session_id))
        await again.workbench.close()
        blocks = tmp_path / "a" / "blocks.db"
        held = {key for (key,) in rows(blocks, "SELECT key FROM kv_blocks")}
        assert len(held) == -(-len(kept) // 64) + 1  # the grid of blocks restarts at the invocation of the adapter
        assert held <= keys
        assert held <= {key for (key,) in rows(blocks, "SELECT key FROM kv_pins WHERE name = ?", PIN)}

    asyncio.run(play())


@pytest.mark.slow
def test_a_session_exported_with_its_kv_is_warm_after_the_import(tmp_path: Path, judge: Path) -> None:
    file = tmp_path / "trip.kv.elsewise"

    async def play() -> None:
        session_id, kept = await asked(tmp_path / "here", judge)
        here = scene(tmp_path / "here")
        await here.view(session_id)
        await here.workbench.transfers.export(session_id, "portable-kv", file, heard)
        await here.workbench.close()
        assert carries_blocks(file)
        there = scene(tmp_path / "there")
        moved = shutil.copytree(judge, tmp_path / "elsewhere" / "judge")  # another folder: the same numbers
        result = await there.workbench.transfers.import_file(file, heard)
        assert await there.workbench.transfers.take_kv(result.sessions, file, heard) == -(-len(kept) // 64) + 1
        await there.view(result.sessions[0])
        await there.workbench.setup.add_adapter(result.sessions[0], str(moved))
        assert (await running(there).prefix_match_async(kept, adapters=stack(there))).tokens == len(kept)
        await there.workbench.answers.send(result.sessions[0], "and?")
        counted, path = running(there).metrics(), await there.path_ids(result.sessions[0])
        assert counted.tokens_restored == len(kept)
        assert counted.tokens_computed <= 1 + len(path) - len(kept)
        await there.workbench.close()

    asyncio.run(play())


def test_only_kv_of_the_base_is_restored_when_the_adapter_has_changed(
    tmp_path: Path, judge: Path, invocation: list[int]
) -> None:
    async def play() -> None:
        session_id, kept = await asked(tmp_path / "a", judge)
        begin = len(kept) - kept[::-1].index(invocation[-1]) - len(invocation)
        while kept[begin : begin + len(invocation)] != invocation:
            begin -= 1
        # given other numbers in the folder
        shutil.rmtree(judge)
        toy_adapter(judge, 4, invocation=invocation)
        again = scene(tmp_path / "a")
        await again.view(session_id)
        await again.workbench.answers.send(session_id, "and?")
        assert running(again).metrics().tokens_restored == begin
        check = await again.workbench.cache.check_uncached(session_id)
        assert check.difference < 1e-4
        # the same with another scale, for which no KV was ever kept
        await again.workbench.setup.set_adapters(session_id, [AdapterChoice(str(judge), "judge", 0.5)])
        await again.workbench.answers.send(session_id, "and now?")
        assert (await again.workbench.cache.check_uncached(session_id)).difference < 1e-4
        await again.workbench.close()

    asyncio.run(play())


def test_a_deleted_adapter_is_named_and_the_session_continues_without_it(tmp_path: Path, judge: Path) -> None:
    async def play() -> None:
        session_id, kept = await asked(tmp_path / "a", judge)
        shutil.rmtree(judge)
        again = scene(tmp_path / "a")
        await again.view(session_id)
        await again.workbench.answers.send(session_id, "and?")
        turn = await again.last(session_id)
        assert "judge" in turn.note
        assert running(again).metrics().tokens_restored == 0
        await again.workbench.setup.set_adapters(session_id, [])
        with pytest.raises(Refusal):
            await again.workbench.setup.add_adapter(session_id, str(judge))
        await again.workbench.answers.regenerate(session_id, turn.node_id)
        counted = running(again).metrics()
        assert 64 <= counted.tokens_restored < len(kept)
        assert (await again.workbench.cache.check_uncached(session_id)).difference < 1e-4
        await again.workbench.close()

    asyncio.run(play())


def test_blocks_of_answers_under_several_stacks_belong_to_the_session(tmp_path: Path, judge: Path) -> None:
    async def play() -> None:
        here = scene(tmp_path / "a")
        session_id = await here.asked(LONG)
        await here.workbench.services.saver.close(20.0)
        for folder in (toy_adapter(tmp_path / "pirate", 1), judge):
            await here.workbench.setup.add_adapter(session_id, str(folder))
            await here.workbench.answers.send(session_id, TEXT)
            await here.workbench.services.saver.close(20.0)
        keys = set(await keys_of(here.store, session_id))
        await here.workbench.close()
        held = {key for (key,) in rows(tmp_path / "a" / "blocks.db", "SELECT key FROM kv_blocks")}
        assert len(held) >= 10
        assert held <= keys

    asyncio.run(play())
