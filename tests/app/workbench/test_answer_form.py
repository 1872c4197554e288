"""The form of a session's answers: set, kept when an answer is continued, refused with the reason."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.app.workbench.conftest import Play
from tests.app.workbench.continuation_scene import last_columns
from tests.app.workbench.scene import Scene, own_tokens, rows
from tests.runtime.grammar.samples import TWICE
from ui import AnswerFormat, BranchAdded, FormatKind, Refusal

DIGITS = AnswerFormat(FormatKind.REGEX, "[0-9]{4}")


def test_an_answer_has_the_set_form_also_when_it_is_continued(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.setup.set_format(session_id, AnswerFormat(FormatKind.REGEX, "[0-9]{20}"))
        await s.workbench.answers.send(session_id, "a number")
        cut = await s.last(session_id)
        assert cut.note == "reached the length limit"  # of 12 tokens
        await s.workbench.answers.continue_turn(session_id, cut.node_id)
        whole = await s.last(session_id)
        digits = "".join(c for c in whole.run.text if c.isdigit())
        assert (len(digits), whole.note) == (20, "")
        # without a form again
        await s.workbench.setup.set_format(session_id, AnswerFormat())
        assert (await s.workbench.setup.view(session_id)).answer_format.kind is FormatKind.FREE

    play(scene)


def test_json_that_violates_its_schema_once_parsed_is_marked_with_the_reason(play: Play, path: Path) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.setup.set_format(session_id, AnswerFormat(FormatKind.JSON_SCHEMA, json.dumps(TWICE)))
        await s.workbench.answers.send(session_id, "a twice")
        cut = await s.last(session_id)
        assert cut.note == "reached the length limit"  # a token before its end
        # when it ends, alone and as two columns
        await s.workbench.answers.continue_turn(session_id, cut.node_id)
        told = await s.last(session_id)
        assert told.run.text.endswith('{"a":1,"a":1}')
        assert told.note.startswith("read as JSON it is not what the schema describes")
        assert rows(path, "SELECT status, finish_reason FROM nodes ORDER BY id DESC LIMIT 1") == [("partial", "grammar")]
        await s.workbench.continuations.continue_many(session_id, told.node_id, len(told.run) - 1, 2)
        assert [column.note for column in last_columns(s).columns] == [told.note, told.note]

    play(scene)


def test_continuing_against_the_form_is_refused_and_adds_nothing(play: Play, path: Path) -> None:
    held: list[int] = []

    async def first(s: Scene) -> None:
        session_id = await s.asked("words, then")
        held.append(session_id)
        old = await s.last(session_id)
        at = own_tokens(old)[3]
        await s.workbench.setup.set_format(session_id, DIGITS)
        before = rows(path, "SELECT (SELECT count(*) FROM nodes), (SELECT count(*) FROM token_chunks)")
        # when the answer would continue with a token, from a token, or from an end, that the form does not allow
        for work in (
            s.workbench.answers.branch(session_id, old.node_id, at, ord("x")),
            s.workbench.answers.continue_turn(session_id, old.node_id),
            s.workbench.continuations.continue_many(session_id, old.node_id, at, 2),
            s.workbench.continuations.beams(session_id, old.node_id, at, 2),
        ):
            with pytest.raises(Refusal, match=r"the output format here does not allow that .* change the format"):
                await work
            # then the shown path is the same, and nothing was added
            assert [t.node_id for t in (await s.view(session_id)).turns][-1] == old.node_id
            assert rows(path, "SELECT (SELECT count(*) FROM nodes), (SELECT count(*) FROM token_chunks)") == before
            assert (await s.last(session_id)).variants == (old.node_id,)
            assert not [event for event in s.events if isinstance(event, BranchAdded)]  # nothing to undo
        # and it continues once there is no form
        await s.workbench.setup.set_format(session_id, AnswerFormat())
        await s.workbench.answers.branch(session_id, old.node_id, at, ord("x"))
        assert len((await s.last(session_id)).variants) == 2

    async def second(s: Scene) -> None:
        assert len((await s.last(held[0])).variants) == 2

    play(first)
    play(second)


def test_an_invalid_form_is_refused_with_the_librarys_message(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        bad = [
            AnswerFormat(FormatKind.REGEX, "(a"),
            AnswerFormat(FormatKind.JSON_SCHEMA, '{"type": "strin"}'),
            AnswerFormat(FormatKind.LARK, "start: nothing"),
            AnswerFormat(FormatKind.LARK, "  "),
        ]
        problems = await asyncio.gather(*(s.workbench.setup.check_format(each) for each in bad))
        assert all(problems)
        assert "unclosed group" in problems[0]
        with pytest.raises(Refusal, match="unclosed group"):
            await s.workbench.setup.set_format(session_id, bad[0])
        assert (await s.workbench.setup.view(session_id)).answer_format == AnswerFormat()
        assert await s.workbench.setup.check_format(DIGITS) == ""

    play(scene)
