"""Stopping an answer keeps its text."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene, assert_same_run, assert_same_view, own_tokens, rows, until
from ui import Refusal, SessionView, TurnStatus


def test_stop_keeps_the_arrived_tokens_and_marks_the_answer(play: Play) -> None:
    shown: list[SessionView] = []

    async def scene(s: Scene) -> None:
        session_id = await s.new()
        sending = asyncio.create_task(s.workbench.answers.send(session_id, "hello"))
        await until(lambda: s.arrived(session_id) == 5)
        assert [row.session_id for row in await s.workbench.sessions.list() if row.answering] == [session_id]
        s.workbench.answers.stop(session_id)
        await sending
        assert not any(row.answering for row in await s.workbench.sessions.list())
        view = await s.view(session_id)
        answer = view.turns[-1]
        assert answer.status is TurnStatus.PARTIAL
        assert answer.note == "stopped"
        assert len(own_tokens(answer)) == 5
        assert answer.run.record(len(answer.run) - 1).finish_reason == "cancelled"
        assert answer.run.record(len(answer.run) - 1).incomplete
        shown.append(view)
        s.engine.holds_after = None
        await s.workbench.answers.continue_turn(session_id, answer.node_id)
        longer = await s.last(session_id)
        assert_same_run(longer.run[: len(answer.run)], answer.run)
        assert len(own_tokens(longer)) == 5 + 12
        await s.workbench.branches.select(session_id, answer.node_id)
        shown.append(await s.view(session_id))

    async def later(s: Scene) -> None:
        assert_same_view(await s.view(shown[0].session_id), shown[1])

    play(scene, engine=Engine(holds_after=5))
    play(later)


@pytest.mark.parametrize("written", [True, False])
def test_the_last_record_of_a_stopped_answer_has_the_finish_reason_cancelled(
    play: Play, path: Path, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    # given an answer whose tokens are saved already when it is stopped, or not yet
    monkeypatch.setattr("app.workbench.prompt.recorder.FLUSH_SECONDS", 0.01 if written else 100.0)

    async def scene(s: Scene) -> None:
        session_id = await s.new()
        sending = asyncio.create_task(s.workbench.answers.send(session_id, "hello"))
        await until(lambda: s.arrived(session_id) == 5)
        if written:
            await until(lambda: rows(path, "SELECT sum(count) FROM token_chunks JOIN nodes ON nodes.id = node_id "
                                           "WHERE role = 'assistant'") == [(5 + header(s, session_id),)])  # fmt: skip
        s.workbench.answers.stop(session_id)
        await sending

    def header(s: Scene, session_id: int) -> int:
        opened = s.workbench.services.sessions.opened(session_id)
        return len(opened.last_turn().run) - 5

    async def later(s: Scene) -> None:
        run = (await s.last((await s.workbench.sessions.list())[0].session_id)).run
        assert [record.finish_reason for record in run][-2:] == [None, "cancelled"]
        assert run.stages is not None
        assert run.stages.as_drawn(len(run) - 1) == run.ids[-1]
        assert await s.store.verify() == []

    play(scene, engine=Engine(holds_after=5))
    assert rows(path, "SELECT finish_reason FROM nodes WHERE role = 'assistant'") == [("cancelled",)]
    play(later)


def test_stop_while_an_answer_is_saved_leaves_it_as_it_ended(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(s: Scene) -> None:
        session_id, saves, may_save, finish = await s.new(), asyncio.Event(), asyncio.Event(), s.store.finish_node

        async def slowly(node_id: int, **how: Any) -> None:
            saves.set()
            await may_save.wait()
            await finish(node_id, **how)

        monkeypatch.setattr(s.store, "finish_node", slowly)
        sending = asyncio.create_task(s.workbench.answers.send(session_id, "hello"))
        await saves.wait()
        s.workbench.answers.stop(session_id)
        # then the session stays locked until the answer is on the disk, so that nothing goes on from less than was shown
        with pytest.raises(Refusal, match="stop it first"):
            await s.workbench.answers.send(session_id, "two")
        may_save.set()
        await sending
        assert len(own_tokens(await s.last(session_id))) == 12
        assert rows(s.path, "SELECT finish_reason FROM nodes WHERE role = 'assistant'") == [("length",)]

    play(scene)


def test_a_stopped_answer_gets_its_end_token_with_the_next_message(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.stopped_after(5)
        s.engine.holds_after = None
        stopped = await s.last(session_id)
        await s.workbench.answers.send(session_id, "go on")
        view = await s.view(session_id)
        assert_same_run(view.turns[2].run, stopped.run)
        assert view.turns[3].run.text == "<|im_end|>\n<|im_start|>user\ngo on<|im_end|>"

    play(scene, engine=Engine(holds_after=5))


@pytest.mark.parametrize("when", ["loading", "scoring"])
def test_stop_before_the_first_token_keeps_the_message(play: Play, when: str) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        if when == "loading":
            s.engine.loading = asyncio.Event()
        else:
            s.engine.on_look = lambda what: s.workbench.answers.stop(session_id) if what == "score" else None
        sending = asyncio.create_task(s.workbench.answers.send(session_id, "hello"))
        await until(lambda: s.engine.starts)
        if when == "loading":
            s.workbench.answers.stop(session_id)
        await sending
        stopped = await s.last(session_id)
        assert (stopped.status, stopped.note) == (TurnStatus.PARTIAL, "stopped")
        assert own_tokens(stopped) == []

        if s.engine.loading is not None:
            s.engine.loading.set()
        s.engine.on_look = lambda _what: None
        await s.workbench.answers.regenerate(session_id, stopped.node_id)
        assert len(own_tokens(await s.last(session_id))) == 12
        assert s.engine.starts == 1  # loading continued
        texts = rows(s.path, "SELECT text FROM nodes WHERE role = 'user'")
        assert texts == [("hello",)]

    play(scene)


def test_stop_before_the_first_token_of_a_continuation_keeps_the_answer(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked()
        old = await s.last(session_id)
        s.engine.holds_after = 0
        going_on = asyncio.create_task(s.workbench.answers.continue_turn(session_id, old.node_id))
        await until(lambda: len(s.engine.prompts) == 2)
        s.workbench.answers.stop(session_id)
        await going_on
        stopped = await s.last(session_id)
        assert_same_run(stopped.run, old.run)
        assert stopped.note == "stopped"
        s.engine.holds_after = None
        await s.workbench.answers.send(session_id, "two")
        assert len(own_tokens(await s.last(session_id))) == 12

    play(scene)


def test_a_cancelled_caller_stops_the_stream_too(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        sending = asyncio.create_task(s.workbench.answers.send(session_id, "hello"))
        await until(lambda: s.arrived(session_id) == 5)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        answer = await s.last(session_id)
        assert (answer.note, len(own_tokens(answer))) == ("stopped", 5)
        assert rows(s.path, "SELECT status, finish_reason FROM nodes WHERE id = ?", answer.node_id) == [
            ("partial", "cancelled")
        ]

    play(scene, engine=Engine(holds_after=5))


def test_a_session_with_a_running_answer_refuses_other_requests(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked()
        answer = await s.last(session_id)
        s.engine.holds_after = 3
        sending = asyncio.create_task(s.workbench.answers.send(session_id, "two"))
        await until(lambda: s.arrived(session_id) == 12 + 3)
        for work in (
            s.workbench.answers.send(session_id, "three"),
            s.workbench.answers.branch(session_id, answer.node_id, own_tokens(answer)[1], 65),
            s.workbench.answers.regenerate(session_id, answer.node_id),
            s.workbench.answers.continue_turn(session_id, answer.node_id),
            s.workbench.branches.select(session_id, answer.node_id),
            s.workbench.models.choose("other"),
        ):
            with pytest.raises(Refusal, match="stop it first"):
                await work
        s.workbench.answers.stop(session_id)
        await sending

    play(scene)


def test_two_sessions_stream_concurrently(play: Play) -> None:
    async def scene(s: Scene) -> None:
        one, two, three = await s.new(), await s.new(), await s.new()
        sends = [
            s.workbench.answers.send(one, "first"),
            s.workbench.answers.send(two, "second"),
            s.workbench.answers.send(three, "third"),
        ]
        await asyncio.gather(*sends)
        together = [await s.view(i) for i in (one, two, three)]
        assert s.engine.starts == 1
        for view, text in zip(together, ("first", "second", "third"), strict=True):
            alone = await s.view(await s.asked(text))
            assert [t.run.ids.tolist() for t in alone.turns] == [t.run.ids.tolist() for t in view.turns]
            assert len(own_tokens(view.turns[-1])) == 12

    play(scene)


def test_stopping_one_of_two_answers_does_not_affect_the_other(play: Play) -> None:
    async def scene(s: Scene) -> None:
        one, two = await s.new(), await s.new()
        s.engine.holds_after = 4
        first = asyncio.create_task(s.workbench.answers.send(one, "first"))
        await until(lambda: s.arrived(one) == 4)
        s.engine.holds_after = None
        await s.workbench.answers.send(two, "second")
        assert not first.done()
        s.workbench.answers.stop(one)
        await first
        assert (await s.last(one)).note == "stopped"
        assert len(own_tokens(await s.last(two))) == 12

    play(scene)


def test_trashing_a_session_stops_its_running_answer_and_reports_it(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        sending = asyncio.create_task(s.workbench.answers.send(session_id, "hello"))
        await until(lambda: s.arrived(session_id) == 5)
        assert await s.workbench.sessions.trash(session_id) is True
        await sending
        assert await s.workbench.sessions.trash(session_id) is False
        await s.workbench.sessions.restore(session_id)
        answer = await s.last(session_id)
        assert (answer.note, len(own_tokens(answer))) == ("stopped", 5)

    play(scene, engine=Engine(holds_after=5))
