"""A long session is opened without its hidden turns: requests about these read them first."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from app.workbench.tree.session import OpenSession
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Scene, alternative, assert_same_view
from tests.app.workbench.test_overflow import SMALL, small
from ui import Refusal, SessionView
from ui.core.shown import typed_text

Command = Callable[[Scene, int, list[int]], Awaitable[object]]

QUESTION, ANSWER, OTHER, LATER = range(4)  # hidden nodes: of the first exchange and another answer in it; of the second


async def take_out_of_sight(s: Scene, session: int, nodes: list[int]) -> None:
    await s.workbench.branches.prune(session, nodes[OTHER], 0, True)
    await s.workbench.branches.prune(session, nodes[OTHER], 0, False)


async def how_it_was_made(s: Scene, session: int, nodes: list[int]) -> None:
    assert s.workbench.answers.how_made(session, nodes[LATER]) is None  # it is not shown
    while (await s.workbench.sessions.show_earlier(session)).earlier:
        pass
    assert s.workbench.answers.how_made(session, nodes[LATER]) is not None


async def another_token(s: Scene, session: int, nodes: list[int]) -> None:
    while (view := await s.workbench.sessions.show_earlier(session)).earlier:
        pass
    turn = next(turn for turn in view.turns if turn.node_id == nodes[ANSWER])
    own = next(at for at, origin in enumerate(turn.run.origin.tolist()) if origin == turn.run.origin.max())
    await s.workbench.answers.branch(session, turn.node_id, own, alternative(turn, own))


async def leave_out(s: Scene, session: int, _nodes: list[int]) -> None:
    await s.workbench.answers.send(session, "an engine runs now")
    with pytest.raises(Refusal, match="message alone is too long"):  # which counts its turns
        await s.workbench.drafts.leave_out(session, "how much?")


COMMANDS: dict[str, Command] = {
    "send": lambda s, session, _: s.workbench.answers.send(session, "and then?"),
    "edit a question": lambda s, session, nodes: s.workbench.answers.send(session, "else?", nodes[QUESTION]),
    "edit an answer": lambda s, session, nodes: s.workbench.answers.send(session, "in my words", nodes[ANSWER]),
    "open as text": lambda s, session, nodes: s.workbench.answers.open_as_text(session, nodes[LATER]),
    "regenerate": lambda s, session, nodes: s.workbench.answers.regenerate(session, nodes[ANSWER]),
    "regenerate exactly": lambda s, session, nodes: s.workbench.answers.regenerate_exactly(session, nodes[ANSWER]),
    "another token": another_token,
    "select": lambda s, session, nodes: s.workbench.branches.select(session, nodes[OTHER]),
    "select the path shown": lambda s, session, nodes: s.workbench.branches.select(session, nodes[ANSWER]),
    "compare": lambda s, session, nodes: s.workbench.branches.compare(session, nodes[OTHER], nodes[LATER]),
    "prune": take_out_of_sight,
    "drawing": lambda s, session, nodes: s.workbench.drawings.find(session, nodes[ANSWER], 8),
    "compose": lambda s, session, nodes: s.workbench.drafts.compose(session, "how much?", nodes[QUESTION]),
    "leave out": leave_out,
    "score a draft": lambda s, session, _: s.workbench.drafts.score(session, "how likely?"),
    "several": lambda s, session, nodes: s.workbench.continuations.continue_many(session, nodes[OTHER], None, 2),
    "beams": lambda s, session, nodes: s.workbench.continuations.beams(session, nodes[OTHER], None, 2),
    "how made": how_it_was_made,
    "system prompt": lambda s, session, _: s.workbench.setup.set_system(session, "Be short."),
}


@pytest.fixture
def long(play: Play, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[int], SessionView]:
    """A stored session of which two turns of nine are shown, its hidden nodes, and its view with all turns in memory."""
    found: list[tuple[int, list[int], SessionView]] = []

    async def talk(s: Scene) -> None:
        session = await s.asked("one")
        first = (await s.view(session)).turns
        question, answer = (next(t.node_id for t in first if t.role == role) for role in ("user", "assistant"))
        await s.workbench.answers.regenerate(session, answer)
        other = (await s.last(session)).node_id
        await s.workbench.branches.select(session, answer)
        await s.workbench.answers.send(session, "two")
        later = (await s.last(session)).node_id
        for words in ("three", "four"):
            await s.workbench.answers.send(session, words)
        found.append((session, [question, answer, other, later], await s.view(session)))

    play(talk)
    monkeypatch.setattr("app.workbench.tree.session.AT_ONCE", 2)
    monkeypatch.setattr("app.workbench.tree.session.WHOLE", 4)
    return found[0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_request_about_a_hidden_turn_reads_it_first(play: Play, long: tuple[int, list[int], SessionView], name: str) -> None:
    session, nodes, whole = long

    async def scene(s: Scene) -> None:
        view = await s.view(session)
        held = opened(s, session)
        assert view.earlier == len(whole.turns) - 2
        assert not any(held.tree.is_held(node) for node in (nodes[LATER], view_before(whole)))
        assert view.branches == whole.branches  # with their names
        await COMMANDS[name](s, session, nodes)
        while (view := await s.workbench.sessions.show_earlier(session)).earlier:
            pass
        assert [row.name for row in view.branches if not row.name] == []
        assert all(turn.run.text for turn in view.turns if turn.role == "user")

    play(scene)


def test_stepping_back_to_the_start_gives_the_view_of_the_whole_session(
    play: Play, long: tuple[int, list[int], SessionView]
) -> None:
    session, _, whole = long

    async def scene(s: Scene) -> None:
        before = (await s.view(session)).earlier
        texts = await s.workbench.branches.earlier_texts(session)
        assert texts == [
            (turn.node_id, turn.role, typed_text(turn.run).replace("\0", "\ufffd")) for turn in whole.turns[:before]
        ]
        while (view := await s.workbench.sessions.show_earlier(session)).earlier:
            pass
        assert_same_view(view, whole)
        assert await s.workbench.branches.earlier_texts(session) == []

    play(scene)


def test_a_draft_after_more_than_the_context_is_counted_without_reading_hidden_turns(
    play: Play, long: tuple[int, list[int], SessionView]
) -> None:
    session, _, whole = long

    async def scene(s: Scene) -> None:
        await s.view(session)
        await s.workbench.services.supervisor.model()
        counted = await s.workbench.drafts.compose(session, "xy")
        assert counted.context_length == SMALL < whole.context_used
        assert (
            counted.context_used == counted.new_tokens == sum(part.tokens for part in counted.parts) == whole.context_used + 2
        )
        assert not opened(s, session).is_read

    play(scene, engine=small())


def test_a_damaged_hidden_row_is_reported_at_once_and_no_model_continues_it(
    play: Play, long: tuple[int, list[int], SessionView], path: Path
) -> None:
    session, nodes, _ = long
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE nodes SET text = 'something else' WHERE id = ?", [nodes[LATER]])

    async def scene(s: Scene) -> None:
        await s.view(session)
        stub = opened(s, session).tree.nodes[nodes[LATER]]
        assert (stub.whole, stub.damaged) == (False, True)
        with pytest.raises(LookupError, match="was not read yet"):
            _ = stub.text
        with pytest.raises(Refusal, match="turn 5 is damaged"):
            await s.workbench.answers.send(session, "and then?")
        assert s.engine.starts == 0

    play(scene)


def opened(s: Scene, session: int) -> OpenSession:
    found = s.workbench.services.sessions.find(session)
    assert found is not None
    return found


def view_before(whole: SessionView) -> int:
    """The last turn that is not shown."""
    return whole.turns[-3].node_id
