"""Reopened sessions are equal to the shown ones."""

from __future__ import annotations

import asyncio

import pytest

from app.sample import ensure_sample
from app.workbench.tree.session import WholeSession
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene, alternative, assert_same_view, own_tokens, until
from ui import SessionView, TurnStatus


def test_a_session_reopened_without_an_engine_equals_the_shown_one(play: Play) -> None:
    shown: list[SessionView] = []
    texts: list[list[bytes]] = []

    async def first(s: Scene) -> None:
        session_id = await s.asked("où? <|im_end|>")
        old = await s.last(session_id)
        at = own_tokens(old)[3]
        await s.workbench.answers.branch(session_id, old.node_id, at, alternative(old, at))
        await s.workbench.answers.send(session_id, "two")
        await s.workbench.answers.regenerate(session_id, (await s.last(session_id)).node_id)
        shown.append(await s.view(session_id))
        texts.append(list(s.workbench.answers.token_text(session_id, [65, 257])))

    async def second(s: Scene) -> None:
        rows = await s.workbench.sessions.list()
        view = await s.view(rows[0].session_id)
        assert_same_view(view, shown[0])
        assert list(s.workbench.answers.token_text(view.session_id, [65, 257])) == texts[0] == [b"A", b"<|im_end|>"]
        assert s.engine.starts == 0

    play(first)
    play(second)


def test_every_branch_is_read_after_a_restart(play: Play) -> None:
    shown: list[SessionView] = []

    async def first(s: Scene) -> None:
        session_id = await s.asked()
        old = await s.last(session_id)
        for at in own_tokens(old)[2:5]:
            await s.workbench.answers.branch(session_id, old.node_id, at, alternative(old, at))
        variants = (await s.last(session_id)).variants
        shown.extend([await s.workbench.branches.select(session_id, variant) for variant in variants])

    async def second(s: Scene) -> None:
        session_id = (await s.workbench.sessions.list())[0].session_id
        await s.view(session_id)
        for view in shown:
            assert_same_view(await s.workbench.branches.select(session_id, view.turns[-1].node_id), view)

    play(first)
    play(second)


def test_a_conversation_continues_after_a_restart(play: Play) -> None:
    async def first(s: Scene) -> None:
        await s.asked("one")

    async def second(s: Scene) -> None:
        session_id = (await s.workbench.sessions.list())[0].session_id
        before = await s.view(session_id)
        await s.workbench.answers.send(session_id, "two")
        after = await s.view(session_id)
        assert_same_view_turns(after, before)
        assert s.engine.prompts[0] == (await s.path_ids(session_id))[: len(s.engine.prompts[0])]

    def assert_same_view_turns(after: SessionView, before: SessionView) -> None:
        assert [t.run.ids.tolist() for t in after.turns[:3]] == [t.run.ids.tolist() for t in before.turns]

    play(first)
    play(second)


def test_showing_another_session_while_the_engine_loads_loses_nothing(play: Play) -> None:
    async def scene(s: Scene) -> None:
        s.engine.loading = asyncio.Event()
        other = await s.new()
        session_id = await s.new()
        sending = asyncio.create_task(s.workbench.answers.send(session_id, "hello"))
        await until(lambda: s.engine.starts)
        await s.view(other)
        waiting = await s.view(session_id)
        assert waiting.turns[-1].status is TurnStatus.WAITING
        s.engine.loading.set()
        await sending
        answer = await s.last(session_id)
        assert answer.run.text.startswith("\n<|im_start|>assistant\n")
        assert s.engine.prompts[0] == (await s.path_ids(session_id))[: len(s.engine.prompts[0])]
        assert s.engine.prompts[0][-len(b"assistant\n") - 1] == 256

    play(scene)


def test_tokens_read_late_do_not_replace_those_of_a_running_answer(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked()
        view = await s.view(session_id)
        session = WholeSession(await s.store.load_session(session_id))
        read = await s.store.load_tokens(session.missing())
        streaming, waiting = view.turns[2], view.turns[1]
        session.runs[streaming.node_id] = streaming.run[:3]
        session.states[waiting.node_id] = TurnStatus.WAITING
        session.add_tokens(read)
        assert len(session.runs[streaming.node_id]) == 3
        assert waiting.node_id not in session.runs
        assert session.missing() == []

    play(scene)


def test_opening_a_session_while_it_streams_shows_the_stream(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        sending = asyncio.create_task(s.workbench.answers.send(session_id, "hello"))
        await until(lambda: s.arrived(session_id) == 4)
        live = await s.last(session_id)
        assert live.status is TurnStatus.STREAMING
        assert len(own_tokens(live)) == 4
        s.workbench.answers.stop(session_id)
        await sending
        assert (await s.last(session_id)).run.ids.tolist() == live.run.ids.tolist()

    play(scene, engine=Engine(holds_after=4))


def test_the_sample_can_be_read_without_a_model(play: Play) -> None:
    async def scene(s: Scene) -> None:
        sample = await ensure_sample(s.store)
        assert await ensure_sample(s.store) == sample
        view = await s.view(sample)
        answer = view.turns[-1]
        assert view.is_sample
        assert answer.note.startswith("recorded on another computer")  # so is its speed
        assert (answer.run.rank[own_tokens(answer)] > 0).all()
        assert len(view.branches) > 1
        last = own_tokens(answer)[1]
        assert s.workbench.answers.token_text(sample, [alternative(answer, last)])[0]
        for row in view.branches:
            assert (await s.workbench.branches.select(sample, row.node_id)).turns
        assert s.engine.starts == 0

    play(scene)


def test_a_session_in_the_trash_is_not_listed_and_can_be_restored(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked()
        await s.workbench.sessions.trash(session_id)
        assert await s.workbench.sessions.list() == []
        await s.workbench.sessions.restore(session_id)
        assert [row.session_id for row in await s.workbench.sessions.list()] == [session_id]

    play(scene)


def test_an_answer_outside_the_shown_path_is_read_when_it_is_continued(play: Play) -> None:
    kept: dict[str, int] = {}

    async def evening(s: Scene) -> None:
        kept["session"] = await s.asked()
        kept["first"] = (await s.last(kept["session"])).node_id
        await s.workbench.answers.regenerate(kept["session"], kept["first"])

    async def morning(s: Scene) -> None:
        view = await s.view(kept["session"])
        assert view.turns[-1].node_id != kept["first"]
        await s.workbench.answers.continue_turn(kept["session"], kept["first"])
        turn = await s.last(kept["session"])
        nodes = {node.id: node for node in (await s.store.load_session(kept["session"])).nodes}
        assert nodes[turn.node_id].parent_id == kept["first"]
        assert len(turn.run) > nodes[kept["first"]].token_count

    play(evening)
    play(morning)


def test_a_change_just_before_a_session_is_shown_is_in_its_view(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a pause between making the view and showing it
    made, go_on = asyncio.Event(), asyncio.Event()

    async def moment() -> None:
        made.set()
        await go_on.wait()

    async def scene(s: Scene) -> None:
        session_id = await s.asked()
        monkeypatch.setattr("app.workbench.sessions.session_list.let_window_paint", moment)
        opening = asyncio.create_task(s.workbench.sessions.open(session_id))
        # when the session is renamed in that pause
        await made.wait()
        await s.workbench.sessions.rename(session_id, "renamed")
        go_on.set()
        # then the view has the change: the window ignores events of a session that it does not know yet
        view = await opening
        assert view.title == "renamed"
        assert_same_view(view, await s.view(session_id))

    play(scene)
