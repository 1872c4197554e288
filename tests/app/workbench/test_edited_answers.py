"""Edited answers, and a whole path as text: added as siblings, and continued by any model."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from runtime import LanguageModel, Origin, load
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene, alternative, answered, assert_same_view, own_tokens, rows, words
from ui import EngineState, Refusal, SessionView, TurnStatus, TurnView

WORDS = "no: to Lisbon"


def said(turn: TurnView) -> str:
    return "".join(turn.run.texts[at] for at in own_tokens(turn))


# ---- the model's turn ---------------------------------------------------------------------------------------------------


def test_an_edited_answer_is_a_sibling_and_nothing_is_generated(play: Play) -> None:
    shown: list[SessionView] = []

    async def first(s: Scene) -> None:
        session_id, old = await answered(s)
        asked = len(s.engine.prompts)
        await s.workbench.answers.send(session_id, WORDS, old.node_id)
        view = await s.view(session_id)
        new = view.turns[-1]
        assert (new.role, said(new), new.note, new.status) == ("assistant", WORDS, "edited", TurnStatus.PARTIAL)
        assert new.variants == (old.node_id, new.node_id)
        assert len(s.engine.prompts) == asked
        assert own_tokens(new), "it has tokens, for a model runs"
        header = [token for token, origin in zip(new.run.ids, new.run.origin, strict=True) if origin == int(Origin.TEMPLATE)]
        assert header == [token for token, origin in zip(old.run.ids, old.run.origin, strict=True) if origin == 0]
        # the old one is unchanged
        back = await s.workbench.branches.select(session_id, old.node_id)
        assert said(back.turns[-1]) == said(old)
        await s.workbench.branches.select(session_id, new.node_id)
        shown.append(await s.view(session_id))
        assert await s.store.verify() == []

    async def second(s: Scene) -> None:
        assert_same_view(await s.view(shown[0].session_id), shown[0])
        assert s.engine.starts == 0

    play(first)
    play(second)


def test_the_model_continues_after_the_edited_answer(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        await s.workbench.answers.send(session_id, WORDS, old.node_id)
        await s.workbench.answers.continue_turn(session_id, (await s.last(session_id)).node_id)
        new = await s.last(session_id)
        assert said(new).startswith(WORDS)
        assert len(own_tokens(new)) == len(words(WORDS)) + 12
        assert s.engine.prompts[-1][-len(words(WORDS)) :] == words(WORDS)
        # each of them with its log-probability
        at = np.array(own_tokens(new))
        assert (new.run.rank[at] > 0).all()
        await s.workbench.answers.send(session_id, "why?")
        assert bytes(t for t in s.engine.prompts[-1] if t < 256).find(WORDS.encode()) > 0

    play(scene)


def test_without_an_engine_the_words_are_kept_and_get_their_tokens_later(play: Play) -> None:
    kept: dict[str, Any] = {}

    async def first(s: Scene) -> None:
        kept["id"], turn = await answered(s)
        kept["old"] = turn.node_id

    async def second(s: Scene) -> None:
        await s.view(kept["id"])
        await s.workbench.answers.send(kept["id"], WORDS, kept["old"])
        new = await s.last(kept["id"])
        assert new.run.text == WORDS
        assert s.workbench.status.engine is EngineState.NONE
        assert rows(s.path, "SELECT text, status, finish_reason FROM nodes WHERE id = ?", new.node_id) == [
            (WORDS, "partial", "edited")
        ]
        kept["new"] = new.node_id

    async def third(s: Scene) -> None:
        await s.view(kept["id"])
        await s.workbench.answers.continue_turn(kept["id"], kept["new"])
        assert said(await s.last(kept["id"])).startswith(WORDS)
        assert s.engine.prompts[-1][-len(words(WORDS)) :] == words(WORDS)
        assert await s.store.verify() == []

    play(first)
    play(second)
    play(third)


def test_a_refused_edit_changes_nothing(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        before = rows(s.path, "SELECT * FROM nodes")
        with pytest.raises(Refusal, match="write what the answer should say"):
            await s.workbench.answers.send(session_id, "  ", old.node_id)
        with pytest.raises(Refusal, match="not part of this session"):
            await s.workbench.answers.send(session_id, "x", 99)
        assert rows(s.path, "SELECT * FROM nodes") == before

    play(scene)


def test_the_text_of_an_edit_is_kept_if_the_engine_fails(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        model = s.workbench.services.supervisor.running
        assert model is not None
        await model.close_async()
        await s.workbench.answers.send(session_id, WORDS, old.node_id)
        assert said(await s.last(session_id)) == WORDS

    play(scene)


# ---- a path as text -----------------------------------------------------------------------------------------------------


class Shifted:
    """Another model, whose ids mean other bytes: its token n is the byte n + 1."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.info = replace(model.info, name="other", kv_fingerprint="another", model_fingerprint="another")
        self.byte_vocab = [model.decode_token((token + 1) % 259) for token in range(259)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def decode_token(self, token: int) -> bytes:
        return self._model.decode_token((token + 1) % 259)

    async def tokenize_async(self, text: str, **options: bool) -> list[int]:
        return [(token - 1) % 259 for token in await self._model.tokenize_async(text, **options)]

    async def render_chat_async(self, *args: Any, **options: Any) -> list[int]:
        return [(token - 1) % 259 for token in await self._model.render_chat_async(*args, **options)]

    def is_eos(self, token: int) -> bool:
        return self._model.is_eos((token + 1) % 259)


def shifted(s: Scene) -> None:
    """Makes that model the answering one."""

    async def start(*_: object, **__: object) -> LanguageModel:
        return cast("LanguageModel", Shifted(await asyncio.to_thread(load, "x", backend="fake")))

    s.workbench.services.supervisor.start_engine = start


def test_a_session_of_another_tokenizer_continues_as_text(play: Play) -> None:
    kept: dict[str, Any] = {}

    async def first(s: Scene) -> None:
        kept["id"], turn = await answered(s)
        kept["answer"], kept["said"] = turn.node_id, said(turn)

    async def second(s: Scene) -> None:
        shifted(s)
        await s.view(kept["id"])
        await s.workbench.answers.send(kept["id"], "and then?")
        failed = await s.last(kept["id"])
        # then the note names the way out, and the model of the session
        assert failed.is_foreign
        assert "Only its text can be used, not its tokens, numbers and KV" in failed.note
        assert "Choose the model it was written with, " in failed.note
        kept["failed"] = failed.node_id

    async def third(s: Scene) -> None:
        shifted(s)
        assert (await s.last(kept["id"])).is_foreign, "after another start too"
        before = dict(rows(s.path, "SELECT id, sha256 FROM nodes"))
        await s.workbench.answers.open_as_text(kept["id"], kept["failed"])
        view = await s.view(kept["id"])
        assert [turn.role for turn in view.turns if turn.role != "system"] == ["user", "assistant", "user", "assistant"]
        first, answer, question, new = view.turns[-4:]
        assert "opened as text" in first.note
        assert answer.run.text == kept["said"]
        assert "and then?" in question.run.text
        assert own_tokens(new)
        assert not new.is_foreign
        # the model has read the whole path in its own tokens
        ids = await s.path_ids(kept["id"])
        assert rows(s.path, "SELECT DISTINCT kv_fingerprint FROM nodes WHERE id > ? AND token_count > 0", max(before)) == [
            ("another",)
        ]
        assert ids
        # and the original is its sibling, unchanged
        after = dict(rows(s.path, "SELECT id, sha256 FROM nodes"))
        assert {node: after[node] for node in before} == before
        back = await s.workbench.branches.select(kept["id"], kept["answer"])
        assert said(back.turns[-3]) == kept["said"]
        assert await s.store.verify() == []

    play(first)
    play(second)
    play(third)


def test_a_branch_by_words_is_refused_in_an_answer_of_another_tokenizer(play: Play) -> None:
    kept: dict[str, Any] = {}

    async def first(s: Scene) -> None:
        kept["id"], kept["turn"] = await answered(s)

    async def second(s: Scene) -> None:
        shifted(s)
        await s.view(kept["id"])
        await s.workbench.services.supervisor.model()
        before = rows(s.path, "SELECT id FROM nodes")
        turn = kept["turn"]
        at = own_tokens(turn)[4]
        with pytest.raises(Refusal, match="written with another tokenizer"):
            await s.workbench.answers.branch(kept["id"], turn.node_id, at, alternative(turn, at))
        assert rows(s.path, "SELECT id FROM nodes") == before

    play(first)
    play(second)


def test_a_path_opened_as_text_gives_the_model_the_same_words_in_order(play: Play) -> None:
    """The same words in the same roles: with the same tokenizer the prompt is the one of the original path."""

    async def scene(s: Scene) -> None:
        session_id, answer = await answered(s)
        text = said(answer)
        await s.workbench.answers.open_as_text(session_id, answer.node_id)
        assert len(s.engine.prompts) == 1, "there is nothing to answer"
        await s.workbench.answers.send(session_id, "and then?")
        read = bytes(token for token in s.engine.prompts[-1] if token < 256).decode(errors="replace")
        assert read.index("where to?") < read.index(text.strip()) < read.index("and then?")

    play(scene)


def test_a_root_that_is_text_is_not_reused_for_another_system_prompt(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, answer = await answered(s)
        root = rows(s.path, "SELECT id FROM nodes WHERE role = 'system'")[0][0]
        await s.workbench.answers.open_as_text(session_id, answer.node_id)
        await s.workbench.setup.set_system(session_id, "Be brief.")
        await s.workbench.setup.set_system(session_id, "")
        session = s.workbench.services.sessions.opened(session_id)
        assert session.tree.path(session.tip)[0].node.id == root

    play(scene)


def test_an_empty_path_cannot_be_opened_as_text(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        with pytest.raises(Refusal, match="not part of this session"):
            await s.workbench.answers.open_as_text(session_id, 1)

    play(scene, engine=Engine())
