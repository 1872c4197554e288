"""Folders, tags and the trash through the use cases, and how a long session is opened."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Scene, assert_same_run, until
from ui import Refusal, SessionsChanged, SessionView


def test_folders_and_tags_are_listed_and_reported(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session = await s.asked()
        folder = await s.workbench.sessions.create_folder("Trips")
        await s.workbench.sessions.move(session, folder)
        await s.workbench.sessions.tag(session, ["spring"])
        await s.workbench.sessions.rename_folder(folder, "Voyages")
        [row] = await s.workbench.sessions.list("#spr")
        assert (row.folder_id, row.tags) == (folder, ("spring",))
        assert [(f.folder_id, f.name) for f in await s.workbench.sessions.folders()] == [(folder, "Voyages")]
        assert sum(isinstance(event, SessionsChanged) for event in s.events) >= 4
        with pytest.raises(Refusal, match="1 to 200"):
            await s.workbench.sessions.create_folder("  ")
        await s.workbench.sessions.remove_folder(folder)
        [row] = await s.workbench.sessions.list()
        assert row.folder_id is None

    play(scene)


def test_a_manual_order_is_kept(play: Play) -> None:
    async def scene(s: Scene) -> None:
        ids = [await s.asked(f"number {n}") for n in range(3)]
        for each in ids:
            await s.workbench.sessions.pin(each, True)
        await s.workbench.sessions.arrange([ids[1], ids[2], ids[0]])
        assert [row.session_id for row in await s.workbench.sessions.list()] == [ids[1], ids[2], ids[0]]

    play(scene)


@pytest.mark.parametrize(("days", "left"), [(0.5, 30), (29.5, 1), (31, 0), (-400, 30)])
def test_the_trash_shows_the_remaining_time_of_a_session(
    play: Play, monkeypatch: pytest.MonkeyPatch, days: float, left: int
) -> None:
    async def scene(s: Scene) -> None:
        session = await s.asked()
        await s.workbench.sessions.trash(session)
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + days * 86_400)  # also if the clock was set back
        assert [(row.session_id, row.days_left) for row in await s.workbench.sessions.trashed()] == [(session, left)]
        monkeypatch.undo()
        assert await s.workbench.sessions.empty_trash([session]) == 1
        assert list(await s.workbench.sessions.trashed()) == []

    play(scene)


def test_a_long_session_opens_at_its_end_and_continues_its_whole_path(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, SessionView, list[int]]] = []

    async def talk(s: Scene) -> None:
        session = await s.asked("one")
        for words in ("two", "three", "four"):
            await s.workbench.answers.send(session, words)
        seen.append((session, await s.view(session), await s.path_ids(session)))

    async def come_back(s: Scene) -> None:
        [(session, whole, ids)] = seen
        view = await s.view(session)
        assert view.earlier == len(whole.turns) - 2
        assert [turn.node_id for turn in view.turns] == [turn.node_id for turn in whole.turns[-2:]]
        for shown, before in zip(view.turns, whole.turns[-2:], strict=True):
            assert_same_run(shown.run, before.run)
        assert (view.context_used, view.branches) == (whole.context_used, whole.branches)
        more = await s.workbench.sessions.show_earlier(session)
        assert [turn.node_id for turn in more.turns] == [turn.node_id for turn in whole.turns[-4:]]
        await s.workbench.answers.send(session, "five")  # the turns that were never shown are read now
        assert s.engine.prompts[-1][: len(ids)] == ids
        while (view := await s.workbench.sessions.show_earlier(session)).earlier:
            pass
        assert [turn.node_id for turn in view.turns[: len(whole.turns)]] == [turn.node_id for turn in whole.turns]
        for shown, before in zip(view.turns, whole.turns, strict=False):
            assert_same_run(shown.run, before.run)

    play(talk)
    monkeypatch.setattr("app.workbench.tree.session.AT_ONCE", 2)
    monkeypatch.setattr("app.workbench.tree.session.WHOLE", 4)
    play(come_back)


def test_a_shorter_path_of_a_long_session_is_shown_completely(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.workbench.tree.session.AT_ONCE", 2)
    monkeypatch.setattr("app.workbench.tree.session.WHOLE", 4)
    made: list[tuple[int, int]] = []

    async def talk(s: Scene) -> None:
        session = await s.asked("one")
        first = await s.last(session)
        for words in ("two", "three", "four"):
            await s.workbench.answers.send(session, words)
        made.append((session, first.node_id))

    async def come_back(s: Scene) -> None:
        [(session, first)] = made
        assert (await s.view(session)).earlier > 0
        await s.workbench.answers.regenerate(session, first)
        view = await s.view(session)
        assert view.earlier == 0
        assert [turn.role for turn in view.turns if turn.role != "system"] == ["user", "assistant"]

    play(talk)
    play(come_back)


def test_a_backup_of_the_day_is_made_when_the_app_tidies_up(play: Play, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.workbench.workbench.TIDY_SECONDS", 0.0)

    async def scene(s: Scene) -> None:
        await s.asked()
        s.workbench.services.tidy_up()
        await until(lambda: all(task.get_name() != "tidy up" for task in s.workbench.services.tasks))

    play(scene)
    assert len(list((path.parent / "backups").glob("*.daily-000001.*"))) == 1
