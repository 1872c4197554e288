"""A message too long for the context: refused, kept, and no obstacle to later ones."""

from __future__ import annotations

import pytest

from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene, own_tokens, rows
from ui import AnswerFormat, EngineState, FormatKind, SessionView, TurnStatus

SMALL = 96  # tokens of context
LONG = "word " * 40


def small() -> Engine:
    return Engine(options={"context_length": SMALL})


async def refused(s: Scene, session_id: int) -> SessionView:
    """Sends a message that does not fit; returns the view after it."""
    await s.workbench.answers.send(session_id, LONG)
    view = await s.view(session_id)
    assert "do not fit into the context of 96" in view.turns[-1].note
    assert own_tokens(view.turns[-1]) == []
    assert view.turns[-1].status is TurnStatus.PARTIAL
    return view


@pytest.mark.parametrize("first", [True, False])
def test_the_next_message_is_a_sibling_of_a_too_long_one(play: Play, first: bool) -> None:
    async def scene(s: Scene) -> None:
        # given
        session_id = await (s.new() if first else s.asked("hi"))
        before = [turn.node_id for turn in (await s.view(session_id)).turns]
        long = (await refused(s, session_id)).turns[-2]
        assert (long.role, long.run.text.count("word ")) == ("user", 40)
        assert (await s.last(session_id)).can_retry is False
        # when
        await s.workbench.answers.send(session_id, "ok")
        # then it is a sibling of the long one, and is answered
        view = await s.view(session_id)
        short = view.turns[-2]
        assert short.variants == (long.node_id, short.node_id)
        assert own_tokens(view.turns[-1])
        assert [turn.node_id for turn in view.turns][: len(before)] == before
        assert len(s.engine.prompts[-1]) < SMALL
        # and the long one is saved, with its note
        assert rows(s.path, "SELECT text FROM nodes WHERE id = ?", long.node_id) == [(LONG,)]
        back = await s.workbench.branches.select(session_id, long.node_id)
        assert "do not fit" in back.turns[-1].note
        assert await s.store.verify() == []

    play(scene, engine=small())


def test_several_too_long_messages_are_siblings(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        for _ in range(3):
            view = await refused(s, session_id)
        assert [turn.role for turn in view.turns] == ["system", "user", "assistant"]
        assert len(view.turns[1].variants) == 3
        # and a message after selecting one of them starts at the same place
        await s.workbench.branches.select(session_id, view.turns[1].variants[0])
        await s.workbench.answers.send(session_id, "ok")
        assert own_tokens(await s.last(session_id))

    play(scene, engine=small())


def test_the_next_message_is_answered_after_a_restart_too(play: Play) -> None:
    async def first(s: Scene) -> None:
        await refused(s, await s.new())

    async def second(s: Scene) -> None:
        session_id = (await s.workbench.sessions.list())[0].session_id
        assert (await s.last(session_id)).can_retry is False
        await s.workbench.answers.send(session_id, "ok")
        assert own_tokens(await s.last(session_id))

    play(first, engine=small())
    play(second, engine=small())


def test_with_a_larger_context_the_long_message_can_be_answered(play: Play) -> None:
    async def first(s: Scene) -> None:
        await refused(s, await s.new())

    async def second(s: Scene) -> None:
        session_id = (await s.workbench.sessions.list())[0].session_id
        failed = await s.last(session_id)
        await s.workbench.answers.regenerate(session_id, failed.node_id)
        view = await s.view(session_id)
        assert own_tokens(view.turns[-1])
        assert view.turns[-1].variants == (view.turns[-1].node_id,)  # the failed answer was removed
        await s.workbench.answers.send(session_id, "more")
        assert [turn.role for turn in (await s.view(session_id)).turns] == ["system", *["user", "assistant"] * 2]

    play(first, engine=small())
    play(second)


def test_a_conversation_that_fills_the_context_has_a_note(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked("x" * 70)  # its answer ends at the context limit
        assert (await s.last(session_id)).note == "the context is full"
        await s.workbench.answers.send(session_id, "ok")
        assert "Go back to an earlier turn, or start a new session" in (await s.last(session_id)).note

    play(scene, engine=small())


def test_the_draft_is_counted_at_the_place_where_it_will_be_sent(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked("hi")
        assert s.workbench.status.engine is EngineState.READY
        view = await s.view(session_id)
        whole, question = view.context_used, view.turns[1]
        assert whole == sum(len(turn.run) for turn in view.turns)
        assert (await s.workbench.drafts.compose(session_id, "12345")).context_used == whole + 5
        # another version of the first question follows only the system prompt
        edited = await s.workbench.drafts.compose(session_id, "12345", question.node_id)
        assert (edited.tokens, edited.context_used) == (5, len(view.turns[0].run) + 5)
        # after a message that was too long: as its sibling
        await refused(s, session_id)
        assert (await s.workbench.drafts.compose(session_id, "12345")).context_used == whole + 5

    play(scene, engine=small())


def test_an_answer_that_reaches_the_limit_ends_there_and_is_kept(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.setup.set_option(session_id, "max_tokens", 500)
        await s.workbench.setup.set_format(
            session_id, AnswerFormat(FormatKind.REGEX, "[a-z]{400}")
        )  # so that it does not end by itself
        await s.workbench.answers.send(session_id, "hi")
        turn = await s.last(session_id)
        assert turn.note == "the context is full"
        assert own_tokens(turn)
        assert rows(s.path, "SELECT finish_reason, status FROM nodes WHERE id = ?", turn.node_id) == [("context", "partial")]

    play(scene, engine=small())


def test_turns_can_be_left_out_for_a_message_sent_before_an_engine_ran(play: Play) -> None:
    """Without an engine it is not counted: it is kept, marked as too long later, and turns can be left out then."""
    text = "one more that is rather long"

    async def first(s: Scene) -> None:
        session_id = await s.new()
        for number in range(3):
            await s.workbench.answers.send(session_id, f"q {number}")

    async def second(s: Scene) -> None:
        session_id = (await s.workbench.sessions.list())[0].session_id
        before = (await s.view(session_id)).turns
        assert (await s.workbench.drafts.compose(session_id, text)).context_length is None
        await s.workbench.answers.send(session_id, text)
        failed = await s.last(session_id)
        assert failed.overflowed
        assert rows(s.path, "SELECT count(*) FROM nodes WHERE text = ?", text) == [(1,)]
        counted = await s.workbench.drafts.compose(session_id, text)
        assert counted.context_length == 110 < counted.context_used
        # when room is made, then the question is asked once, after the latest turns
        assert await s.workbench.drafts.leave_out(session_id, text) > 0
        assert all(text not in turn.run.text for turn in (await s.view(session_id)).turns)
        await s.workbench.answers.send(session_id, text)
        view = await s.view(session_id)
        assert [text in turn.run.text for turn in view.turns if turn.role == "user"][-1]
        assert sum(text in turn.run.text for turn in view.turns) == 1
        assert own_tokens(view.turns[-1])
        assert not view.turns[-1].overflowed
        # the earlier turns and the first try are unchanged
        back = await s.workbench.branches.select(session_id, failed.node_id)
        assert [turn.node_id for turn in back.turns][: len(before)] == [turn.node_id for turn in before]

    play(first)
    play(second, engine=Engine(options={"context_length": 110}))
