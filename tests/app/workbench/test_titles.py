"""Titles that a model gives."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import pytest

from app.workbench.sessions.titles import title_of
from runtime import GenerationOptions, TokenRun
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import FrailModel, Scene
from tests.ui.spoken import Vocabulary, run_of
from ui import Refusal, SessionBegun


def speaks(monkeypatch: pytest.MonkeyPatch, pieces: list[str]) -> list[str]:
    """Given: a model that answers with `pieces`; returns the pieces that were read."""
    taken: list[str] = []
    vocabulary = Vocabulary()

    async def generate_runs(
        _model: FrailModel, _ids: list[int], _options: GenerationOptions | None, **_: Any
    ) -> AsyncGenerator[TokenRun, None]:
        for piece in pieces:
            taken.append(piece)
            yield run_of(vocabulary, [piece])

    monkeypatch.setattr(FrailModel, "generate_runs", generate_runs)
    return taken


@pytest.mark.parametrize(
    ("pieces", "title", "taken"),
    [
        (["A boat", " in Lisbon"], "A boat in Lisbon", 2),  # it ends by itself
        (['\n"A boat', ' in Lisbon"', "\n", "It is about", " boats"], "A boat in Lisbon", 3),  # later pieces are not awaited
        (["Title: **A boat**\n"], "A boat", 1),
        (["<think>\nThe user", " asks\n", "</think>\n\n", "A boat", "\n"], "A boat", 5),
    ],
)
def test_a_title_is_the_first_line_of_the_models_answer(
    pieces: list[str], title: str, taken: int, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked("where to?")
        said = speaks(monkeypatch, pieces)
        assert await s.workbench.answers.suggest_title(session_id) == title
        assert len(said) == taken
        # nothing is stored
        assert [row.title for row in await s.workbench.sessions.list()] == ["where to?"]

    play(scene)


def test_reasoning_opened_by_the_template_is_not_part_of_a_title(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def render(_model: FrailModel, _messages: object) -> list[int]:
        return list(b"a conversation<think>\n")

    async def scene(s: Scene) -> None:
        session_id = await s.asked("where to?")
        speaks(monkeypatch, ["The user asks\n", "</think>\n\n", "A boat", "\n"])
        monkeypatch.setattr(FrailModel, "render_chat_async", render, raising=False)
        assert await s.workbench.answers.suggest_title(session_id) == "A boat"

    play(scene)


def test_an_empty_answer_and_a_session_without_text_are_refused(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(s: Scene) -> None:
        with pytest.raises(Refusal, match="nothing to give a title to yet"):
            await s.workbench.answers.suggest_title(await s.new())
        session_id = await s.asked("where to?")
        speaks(monkeypatch, ["<think>", " so much to", " think about"])
        with pytest.raises(Refusal, match="answered with no title"):
            await s.workbench.answers.suggest_title(session_id)

    play(scene)


def test_the_model_gets_one_request_with_the_text_of_the_conversation(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked("where to?")
        prompts = len(s.engine.prompts)
        with suppress(Refusal):  # the toy's answer may be empty
            await s.workbench.answers.suggest_title(session_id)
        assert len(s.engine.prompts) == prompts + 1
        asked = bytes(token for token in s.engine.prompts[prompts] if token < 256).decode(errors="replace")
        assert "user: where to?" in asked
        assert asked.count("Write a title") == 1

    play(scene)


def test_a_title_of_first_words_has_no_markup() -> None:
    assert title_of("# A heading\n\nPlease **compare** `a_b` and c") == "A heading Please compare a_b and c"
    assert title_of("> quoted\n- one\n* two") == "quoted one two"
    assert title_of("2 * 3 - 1 > 4 # why?") == "2 * 3 - 1 > 4 # why?"
    assert title_of("**") == "**"


@pytest.mark.parametrize("by_hand", [False, True])
def test_the_first_answer_is_reported_if_the_title_is_still_the_first_words(play: Play, by_hand: bool) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        if by_hand:
            await s.workbench.sessions.rename(session_id, "By hand")
        for text in ("A boat", "And then?"):
            await s.workbench.answers.send(session_id, text)
        assert [event.session_id for event in s.events if isinstance(event, SessionBegun)] == [session_id] * (not by_hand)

    play(scene)
