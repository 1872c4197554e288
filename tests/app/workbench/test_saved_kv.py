"""After each answer its KV is saved; each turn is shown as warm, on disk or cold."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from app.portable_kv import keys_of
from app.workbench import workbench as workbench_module
from app.workbench.kv.block_pins import PIN
from runtime import BlockOptions, LanguageModel, Origin, block_keys
from storage import BlockFile, SessionStore, UnknownRowError
from tests.app.workbench.scene import Engine, FrailModel, Scene, alternative, until
from tests.block_stores import SHELVES, MemoryBlocks, memory_options
from tests.fakes import engine_of
from tests.runtime.adapters.toys import toy_adapter
from ui import SessionView, Tier


@pytest.fixture
def shelf(request: pytest.FixtureRequest) -> Iterator[MemoryBlocks]:
    """A block store that outlives engines."""
    name = request.node.nodeid
    store = SHELVES[name] = MemoryBlocks()
    yield store
    del SHELVES[name]


def engine(request: pytest.FixtureRequest) -> Engine:
    made = Engine()
    made.options["blocks"] = memory_options(request.node.nodeid)
    return made


def told(view: SessionView) -> set[Tier]:
    """The tiers of the turns that have tokens."""
    return {turn.tier for turn in view.turns if len(turn.run)}


def test_the_kv_of_an_answer_is_saved_and_its_session_reopens_from_disk(
    tmp_path: Path, request: pytest.FixtureRequest, shelf: MemoryBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workbench_module, "KEEP_SECONDS", 20.0)

    async def first() -> int:
        scene = Scene.open(tmp_path / "s.db", engine(request))
        session_id = await scene.asked("hello, this is a message of some length, so that it is worth a look " * 3)
        assert told(await scene.view(session_id)) == {Tier.WARM}
        await scene.workbench.close()
        return session_id

    async def second(session_id: int) -> None:
        scene = Scene.open(tmp_path / "s.db", engine(request))
        assert told(await scene.view(session_id)) == {Tier.COLD}  # no query was made yet
        # when the engine has started
        scene.workbench.models.warm_up()
        await until(lambda: scene.workbench.status.tiers.get(Tier.DISK))
        view = await scene.view(session_id)
        assert told(view) == {Tier.DISK}
        assert scene.workbench.status.tiers[Tier.WARM] == 0
        # and a message makes it warm, with little computed
        await scene.workbench.answers.send(session_id, "and?")
        view = await scene.view(session_id)
        assert told(view) == {Tier.WARM}
        model = await scene.workbench.services.supervisor.model()
        assert model.metrics().tokens_restored > 200
        await scene.workbench.close()

    session_id = asyncio.run(first())
    assert shelf.blocks
    assert shelf.closed == 1
    asyncio.run(second(session_id))


def test_closing_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, request: pytest.FixtureRequest, shelf: MemoryBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, hangs = threading.Event(), threading.Event()
    monkeypatch.setattr(workbench_module, "KEEP_SECONDS", 0.05)

    async def play() -> None:
        scene = Scene.open(tmp_path / "s.db", engine(request))

        def hang(name: str) -> None:
            if name == "put":
                hangs.set()
                gate.wait(60)

        shelf.before = hang
        await scene.asked()
        await until(hangs.is_set)
        model = scene.workbench.services.supervisor.running
        assert isinstance(model, FrailModel)
        owner = engine_of(cast("LanguageModel", model.model))
        # when it is closed, then the engine is closed while the disk still hangs
        closing = asyncio.create_task(scene.workbench.close())
        await until(lambda: owner.ended)
        gate.set()
        await closing

    asyncio.run(play())
    assert shelf.closed == 1


def test_saves_that_wait_for_an_earlier_one_are_made_at_the_end_too(
    tmp_path: Path, request: pytest.FixtureRequest, shelf: MemoryBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three continuations end at once: two of them wait for the first, while the window is closed."""
    monkeypatch.setattr(workbench_module, "KEEP_SECONDS", 20.0)
    gate, saved = threading.Event(), list[int]()

    async def play() -> None:
        scene = Scene.open(tmp_path / "s.db", engine(request))
        session_id = await scene.asked()
        await scene.workbench.services.saver.close(20.0)
        model = await scene.workbench.services.supervisor.model()
        real = model.save_blocks_async

        async def save(ids: list[int], **options: Any) -> object:
            done = await real(ids, **options)
            saved.append(len(ids))
            return done

        monkeypatch.setattr(model, "save_blocks_async", save)

        def hang(name: str) -> None:
            if name == "put":
                gate.wait(20)

        shelf.before = hang
        await scene.workbench.continuations.continue_many(session_id, (await scene.last(session_id)).node_id, None, 3)
        assert saved == []
        closing = asyncio.create_task(scene.workbench.close())
        await until(lambda: scene.workbench.services.sessions.closing)
        gate.set()
        await closing

    asyncio.run(play())
    assert len(saved) == 3


def test_a_failing_disk_does_not_affect_answers(tmp_path: Path, request: pytest.FixtureRequest, shelf: MemoryBlocks) -> None:
    def full(name: str) -> None:
        if name == "put":
            raise OSError(28, "No space left on device")

    shelf.before = full

    async def play() -> None:
        scene = Scene.open(tmp_path / "s.db", engine(request))
        session_id = await scene.asked("one")
        await scene.workbench.answers.send(session_id, "two")
        assert len((await scene.view(session_id)).turns[-1].run) > 1
        await scene.workbench.close()

    asyncio.run(play())
    assert not shelf.blocks


def test_without_a_block_file_no_save_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        scene = Scene.open(tmp_path / "s.db", Engine())
        model = await scene.workbench.services.supervisor.model()
        monkeypatch.setattr(model, "save_blocks_async", lambda *_, **__: pytest.fail("asked"))
        await scene.asked()
        await scene.workbench.services.saver.close(20.0)
        await scene.workbench.close()

    asyncio.run(play())


def test_continuations_and_beams_are_kept_like_answers(
    tmp_path: Path, request: pytest.FixtureRequest, shelf: MemoryBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[tuple[list[int], int | None]] = []

    async def play() -> None:
        scene = Scene.open(tmp_path / "s.db", engine(request))
        session_id = await scene.asked("hello, this is a message of some length, so that it is worth a look " * 3)
        model = await scene.workbench.services.supervisor.model()
        real = model.save_blocks_async

        async def save(ids: list[int], *, adapters: object = None, replaces: int | None = None) -> object:
            saved.append((list(ids), replaces))
            return await real(ids, adapters=adapters, replaces=replaces)  # type: ignore[arg-type]  # as they were given

        monkeypatch.setattr(model, "save_blocks_async", save)
        turn = (await scene.view(session_id)).turns[-1]
        at = int((turn.run.origin == int(Origin.SAMPLED)).nonzero()[0][1])
        for work in (scene.workbench.continuations.continue_many, scene.workbench.continuations.beams):
            saved.clear()
            await work(session_id, turn.node_id, at, 3)
            await until(lambda: len(saved) == 3)
            assert len({tuple(ids) for ids, _ in saved}) == 3
            # in addition to the answer, whose end is kept
            assert [replaces for _, replaces in saved] == [None] * 3
        # the end of a continued answer is replaced by that of its continuation
        saved.clear()
        before = len(await path_of(scene, session_id))
        await scene.workbench.answers.send(session_id, "and?")
        await until(lambda: len(saved) == 1)
        assert saved[0][1] == before - 1  # the last drawn token had no KV then
        await scene.workbench.close()

    asyncio.run(play())
    assert shelf.blocks


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [True, False])
def test_the_short_block_at_an_earlier_end_is_deleted(
    tmp_path: Path, request: pytest.FixtureRequest, shelf: MemoryBlocks, restarts: bool
) -> None:
    """One more message at a time: of all saved ends only the last one keeps its short block."""
    text = "hello, this is a message of some length, so that it is worth a look " * 2
    held: list[int] = []

    async def evenings(numbers: range) -> None:
        scene = Scene.open(tmp_path / "s.db", engine(request))
        rows = await scene.store.sessions()
        session_id = rows[0].id if rows else await scene.new()
        for number in numbers:
            await scene.view(session_id)
            await scene.workbench.answers.send(session_id, f"{number} {text}")
            await scene.workbench.services.saver.close(20.0)
            held.append(len(await path_of(scene, session_id)))
        await scene.workbench.close()

    for part in (range(2), range(2, 4)) if restarts else (range(4),):
        asyncio.run(evenings(part))
    short = [tokens for _, tokens, _ in shelf.blocks.values() if tokens < 64]
    assert [tokens % 64 for tokens in held[:-1]].count(0) == 0, "every evening ended within a block"
    assert short == [(held[-1] - 1) % 64]


def test_saved_ends_are_deleted_with_their_session(tmp_path: Path) -> None:
    async def play() -> None:
        store = SessionStore.open(tmp_path / "s.db")
        kept, gone = await store.create_session("kept"), await store.create_session("gone")
        for session_id in (kept, gone):
            await store.set_saved_ends(session_id, {7: 100, 9: 140})
        await store.trash_session(gone)
        await store.empty_trash([gone])
        assert await store.saved_ends(kept) == {7: 100, 9: 140}
        assert await store.saved_ends(gone) == {}
        with pytest.raises(UnknownRowError):
            await store.set_saved_ends(gone, {1: 1})
        await store.set_setting(f"ends/{kept}", {"not": "pairs"})
        assert await store.saved_ends(kept) == {}
        assert await store.verify() == []
        await store.close()

    asyncio.run(play())


def test_a_branch_at_the_last_token_keeps_the_saved_end_of_the_answer(
    tmp_path: Path, request: pytest.FixtureRequest, shelf: MemoryBlocks
) -> None:
    """The branch shares the saved blocks of the answer, whose end there is kept."""

    async def play() -> None:
        scene = Scene.open(tmp_path / "s.db", engine(request))
        session_id = await scene.asked("hello, this is a message of some length, so that it is worth a look " * 2)
        await scene.workbench.services.saver.close(20.0)
        [short] = [tokens for _, tokens, _ in shelf.blocks.values() if tokens < 64]
        turn = await scene.last(session_id)
        at = len(turn.run) - 1
        await scene.workbench.answers.branch(session_id, turn.node_id, at, alternative(turn, at))
        await scene.workbench.services.saver.close(20.0)
        assert short in [tokens for _, tokens, _ in shelf.blocks.values()]
        await scene.workbench.close()

    asyncio.run(play())


async def path_of(scene: Scene, session_id: int) -> list[int]:
    """The ids of the shown path."""
    session = await scene.workbench.services.sessions.whole(session_id)
    return list(session.path_ids(session.tree.path((await scene.view(session_id)).turns[-1].node_id)))


@pytest.mark.slow
def test_a_pinned_session_stays_warm_however_many_blocks_others_save(tmp_path: Path) -> None:
    """A block file with room for two of three conversations: the pinned one, the oldest, is read back after a restart."""
    text = "hello, this is a message of some length, so that it is worth a look " * 4

    def opened(budget: int) -> Scene:
        made = Engine()
        made.options["blocks"] = BlockOptions("storage:open_blocks", str(tmp_path / "blocks.db"), budget)
        return Scene.open(tmp_path / "s.db", made)

    async def saved(scene: Scene, session_id: int) -> int:
        await scene.workbench.services.saver.close(20.0)
        model = await scene.workbench.services.supervisor.model()
        return (await model.save_blocks_async(await scene.path_ids(session_id))).tokens

    async def measure() -> int:
        scene = opened(1 << 30)
        await saved(scene, await scene.asked(f"0 {text}"))
        await scene.workbench.close()
        with BlockFile(tmp_path / "blocks.db", 1 << 30) as file:
            return file.stats().bytes

    async def fill(budget: int, *, pinned: bool) -> tuple[list[int], list[int]]:
        scene = opened(budget)
        ids = [await scene.asked(f"first {text}")]
        await scene.workbench.sessions.pin(ids[0], pinned)
        kept = [await saved(scene, ids[0])]
        for n in range(3):
            ids.append(await scene.asked(f"other {n} {text}"))
            kept.append(await saved(scene, ids[-1]))
        await scene.workbench.close()
        return ids, kept

    async def reopened(budget: int, session_id: int) -> int:
        scene = opened(budget)
        model = await scene.workbench.services.supervisor.model()
        await scene.view(session_id)
        found = (await model.prefix_match_async(await scene.path_ids(session_id))).tokens
        await scene.workbench.close()
        return found

    budget = asyncio.run(measure()) * 5 // 2
    (tmp_path / "blocks.db").unlink()
    ids, kept = asyncio.run(fill(budget, pinned=False))
    assert asyncio.run(reopened(budget, ids[0])) < kept[0] // 2, "without a pin it is the first to go"
    assert asyncio.run(reopened(budget, ids[-1])) == kept[-1]
    (tmp_path / "blocks.db").unlink()
    ids, kept = asyncio.run(fill(budget, pinned=True))
    assert asyncio.run(reopened(budget, ids[0])) == kept[0]
    # unpinned, it makes room again

    async def unpin() -> None:
        scene = opened(budget)
        await scene.workbench.services.supervisor.model()
        await scene.workbench.sessions.pin(ids[0], False)
        for n in range(3):
            await saved(scene, await scene.asked(f"more {n} {text}"))
        assert scene.workbench.status.disk_note == ""
        await scene.workbench.close()

    asyncio.run(unpin())
    assert asyncio.run(reopened(budget, ids[0])) < kept[0] // 2


def test_answers_of_a_pinned_session_under_adapters_are_pinned_too(
    tmp_path: Path, request: pytest.FixtureRequest, shelf: MemoryBlocks
) -> None:
    async def play() -> None:
        scene = Scene.open(tmp_path / "s.db", engine(request))
        session_id = await scene.new()
        await scene.workbench.setup.add_adapter(session_id, str(toy_adapter(tmp_path / "pirate", 1)))
        await scene.workbench.sessions.pin(session_id, True)
        await until(lambda: not len(scene.workbench.services.tasks))
        await scene.workbench.answers.send(
            session_id, "hello, this is a message of some length, so that it is worth a look " * 3
        )
        await scene.workbench.services.saver.close(20.0)
        # the kept blocks, all under the keys by which they are looked up
        kept = set(shelf.blocks)
        assert len(kept) > 2
        assert kept <= set(shelf.pins[PIN])
        assert kept <= set(await keys_of(scene.workbench.services.store, session_id))
        base = (await scene.workbench.services.supervisor.model()).info.kv_fingerprint
        assert not kept & set(block_keys(base, await scene.path_ids(session_id)))
        await scene.workbench.close()

    asyncio.run(play())


@pytest.mark.slow
def test_pinned_sessions_that_fill_the_disk_are_reported_until_there_is_room(tmp_path: Path) -> None:
    text = "hello, this is a message of some length, so that it is worth a look " * 4

    async def play() -> None:
        made = Engine()
        made.options["blocks"] = BlockOptions("storage:open_blocks", str(tmp_path / "blocks.db"), 400_000)
        scene = Scene.open(tmp_path / "s.db", made)
        pinned: list[int] = []
        while not scene.workbench.status.disk_note:
            assert len(pinned) < 20
            pinned.append(await scene.asked(f"{len(pinned)} {text}"))
            await scene.workbench.services.saver.close(20.0)
            await scene.workbench.sessions.pin(pinned[-1], True)
            await until(lambda: not len(scene.workbench.services.tasks))
        assert len(pinned) > 2
        assert "pinned sessions fill it. Unpin a session" in scene.workbench.status.disk_note
        # the first ones are held completely: no pinned block was evicted
        model = await scene.workbench.services.supervisor.model()
        ids = await scene.path_ids(pinned[0])
        assert (await model.prefix_match_async(ids)).tokens >= len(ids) - 1
        for session_id in pinned:
            await scene.workbench.sessions.pin(session_id, False)
        await until(lambda: not len(scene.workbench.services.tasks))
        await scene.asked("after all " + text)
        await until(lambda: not scene.workbench.status.disk_note)
        # a path larger than the whole budget is reported, too
        await scene.asked(text * 8)
        await until(lambda: "this session alone is larger" in scene.workbench.status.disk_note)
        await scene.workbench.close()

    asyncio.run(play())
