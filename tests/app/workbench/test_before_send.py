"""Before a message is sent: the parts of the context, the surprise of the draft, files, and room."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from runtime import EngineDiedError, LanguageModel, Priority
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene, assert_same_view, until
from ui import Composition, EngineState, PartKind, Refusal, TextFile

NOTES = TextFile("notes.txt", "the boat is called Ada\n")


def parts(composition: Composition) -> dict[str, tuple[int, int]]:
    return {part.kind.value: (part.tokens, part.warm) for part in composition.parts}


def seen(s: Scene) -> str:
    return bytes(token for token in s.engine.prompts[-1] if token < 256).decode(errors="replace")


def test_the_counts_before_sending_equal_the_computed_tokens(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.services.supervisor.model()
        await s.workbench.setup.set_system(session_id, "Be short.")
        await s.workbench.setup.pin_files(session_id, [NOTES])
        for text in ("hello there", "and what is it called?"):
            # when it is counted, and then sent
            before = await s.workbench.drafts.compose(session_id, text)
            await s.workbench.answers.send(session_id, text)
            stats = (await s.last(session_id)).stats
            # then the prompt has the counted length, and the counted part of it was computed
            assert sum(part.tokens for part in before.parts) == len(s.engine.prompts[-1])
            assert stats is not None
            assert stats.computed == before.new_tokens
        found = parts(before)
        assert list(found) == ["system", "files", "history", "draft"]
        assert all(tokens > 0 for tokens, _ in found.values())
        assert found["system"][0] == found["system"][1]  # warm
        assert found["draft"][1] < found["draft"][0]
        assert seen(s).startswith("system\nBe short.\n\n[notes.txt]\nthe boat is called Ada\n[end of notes.txt]\nuser\nhello")

    play(scene)


def test_turns_without_tokens_are_counted_by_their_text(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.services.supervisor.model()
        empty = (await s.workbench.drafts.compose(session_id, "")).context_used
        await s.workbench.setup.set_system(session_id, "Be short.")
        assert (await s.workbench.drafts.compose(session_id, "")).context_used == empty + len(b"Be short.")
        assert (await s.workbench.drafts.compose(session_id, "xy")).context_used == empty + len(b"Be short.xy")
        # and each attached file is counted separately
        counted = await s.workbench.drafts.compose(session_id, "the boat\n\nx", files=["the boat", "x"])
        assert counted.files == (len(b"the boat"), 1)

    play(scene)


@pytest.mark.parametrize("words", [20, 20_000])
def test_files_are_counted_once_and_not_at_each_pause_of_typing(
    play: Play, words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        model, told = await s.workbench.services.supervisor.model(), list[str]()
        files = ["the boat " * words, "the sea\n" * words]
        await s.workbench.drafts.compose(session_id, "\n".join([*files, "a"]), files=files)
        tokenize = LanguageModel.tokenize_async

        async def told_of(self: LanguageModel, text: str, *, add_special_tokens: bool = True) -> list[int]:
            told.append(text)
            return await tokenize(self, text, add_special_tokens=add_special_tokens)

        monkeypatch.setattr(LanguageModel, "tokenize_async", told_of)
        # when the draft grows
        counted = await s.workbench.drafts.compose(session_id, "\n".join([*files, "ab"]), files=files)
        # then the files are not tokenised again, and a message that does not fit beside them is not tokenised either
        assert counted.files == tuple(map(len, files))
        assert told
        assert not {*files} & {*told}
        fits = sum(map(len, files)) < model.info.context_length
        assert fits == (words == 20)
        assert fits or max(map(len, told)) < 100
        assert counted.context_used >= sum(map(len, files))

    play(scene)


def test_a_file_is_counted_once_also_if_typing_continues_meanwhile(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    tokenize = LanguageModel.tokenize_async

    async def scene(s: Scene) -> None:
        gate = asyncio.Event()

        async def slowly(self: LanguageModel, text: str, *, add_special_tokens: bool = True) -> list[int]:
            if text == "the boat":
                asked.append(text)
                await gate.wait()
            return await tokenize(self, text, add_special_tokens=add_special_tokens)

        session_id = await s.new()
        await s.workbench.services.supervisor.model()
        monkeypatch.setattr(LanguageModel, "tokenize_async", slowly)
        first = asyncio.create_task(s.workbench.drafts.compose(session_id, "the boat\na", files=["the boat"]))
        await until(lambda: asked)
        first.cancel()  # the draft has changed
        await asyncio.wait([first])
        gate.set()
        counted = await s.workbench.drafts.compose(session_id, "the boat\nab", files=["the boat"])
        assert counted.files == (len("the boat"),)
        assert asked == ["the boat"]

    play(scene)


def test_parts_have_no_counts_without_an_engine(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        assert (await s.workbench.drafts.compose(session_id, "x")).parts == ()
        assert await s.workbench.drafts.score(session_id, "x") is None
        with pytest.raises(Refusal, match="engine"):
            await s.workbench.drafts.leave_out(session_id, "x")

    play(scene)


def test_a_draft_is_scored_in_the_context_in_which_it_will_be_sent(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked("hi")
        draft = await s.workbench.drafts.score(session_id, "and now?")
        assert await s.workbench.drafts.score(session_id, "  ") is None
        with pytest.raises(Refusal, match="the limit is 1,024"):
            await s.workbench.drafts.score(session_id, "x" * 1100)
        with pytest.raises(Refusal, match="100,000 characters"):
            await s.workbench.drafts.score(session_id, "x" * 100_000)
        before = len((await s.view(session_id)).turns)
        await s.workbench.answers.send(session_id, "and now?")
        turn = (await s.view(session_id)).turns[before]
        typed = turn.run.logprob[turn.run.origin == 1]
        assert draft is not None
        assert draft.text == "and now?"
        assert draft.logprob == pytest.approx(typed, rel=1e-4)
        # the draft had a lower priority than other requests, the message had not
        assert s.engine.priorities == [Priority.CHAT, Priority.BACKGROUND, Priority.CHAT]

    play(scene)


def test_pinned_files_start_a_root_of_their_own_and_are_stored(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked("hi")
        setup = await s.workbench.setup.pin_files(session_id, [NOTES])
        assert setup.files == (NOTES,)
        await s.workbench.answers.send(session_id, "hi")
        assert "Ada" in seen(s)
        assert (await s.workbench.setup.pin_files(session_id, [])).files == ()
        assert len((await s.view(session_id)).turns) > 2  # the earlier conversation

    async def again(s: Scene) -> None:
        row = (await s.workbench.sessions.list())[0]
        await s.view(row.session_id)
        assert (await s.workbench.setup.pin_files(row.session_id, [NOTES])).files == (NOTES,)
        assert len((await s.view(row.session_id)).turns) == 3

    play(scene)
    play(again)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x00\x01\x02", "not text: byte 0 of 3 is 0"),
        (b"caf\xe9", "byte 3 of 4 is 0xe9"),
        (b"x" * ((1 << 20) + 1), "1,048,577 bytes"),
        (b"  \n", "empty"),
        (None, "cannot be read"),
    ],
)
def test_files_that_are_not_text_are_refused_with_the_reason(
    play: Play, tmp_path: Path, data: bytes | None, words: str
) -> None:
    async def scene(s: Scene) -> None:
        file = tmp_path / "a.bin"
        if data is not None:
            file.write_bytes(data)
        with pytest.raises(Refusal, match=words):
            await s.workbench.drafts.read_file(str(file))

    play(scene)


def test_a_text_file_is_read_whatever_its_first_bytes(play: Play, tmp_path: Path) -> None:
    async def scene(s: Scene) -> None:
        file = tmp_path / "日本.md"
        file.write_bytes("\ufeff# Ré🙂sumé".encode())
        assert await s.workbench.drafts.read_file(str(file)) == TextFile("日本.md", "# Ré🙂sumé")

    play(scene)


def test_the_oldest_turns_are_left_out_and_stay_in_the_tree(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.setup.set_system(session_id, "Be short.")
        for number in range(4):
            await s.workbench.answers.send(session_id, f"question {number}")
        whole = (await s.view(session_id)).turns
        text = "one more that is rather long, so that there is no room"
        # when
        count = await s.workbench.drafts.leave_out(session_id, text)
        # then the latest turns continue under another root of the same words, and a note says so
        view = await s.view(session_id)
        assert count > 0
        assert [t.role for t in view.turns[1:]] == ["user", "assistant"] * ((8 - count) // 2)
        assert view.turns[0].run.text.startswith("Be short")
        assert f"{count} earlier turns are not seen by the model" in view.turns[1].note
        assert view.turns[-1].run.text == whole[-1].run.text
        await s.workbench.answers.send(session_id, text)
        assert (await s.last(session_id)).note == "reached the length limit"
        assert "question 0" not in seen(s)
        assert seen(s).startswith("system\nBe short.\nuser\nquestion")
        # the prompt equals the path of the tree, token for token, and every token has its numbers
        assert (await s.path_ids(session_id))[: len(s.engine.prompts[-1])] == s.engine.prompts[-1]
        # and the whole conversation is one click away
        back = await s.workbench.branches.select(session_id, whole[-1].node_id)
        assert [t.node_id for t in back.turns] == [t.node_id for t in whole]
        assert await s.store.verify() == []

    play(scene, engine=Engine(options={"context_length": 256}))


def test_leaving_out_turns_is_refused_for_a_message_that_is_too_long_alone(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked("hi")
        before = await s.path_ids(session_id)
        with pytest.raises(Refusal, match="message alone is too long"):
            await s.workbench.drafts.leave_out(await s.new(), "x" * 300)
        await s.view(session_id)
        assert await s.path_ids(session_id) == before
        assert parts(await s.workbench.drafts.compose(session_id, "")).get(PartKind.DRAFT.value) == (0, 0)

    play(scene, engine=Engine(options={"context_length": 256}))


def test_leaving_out_turns_of_the_sample_changes_a_copy(play: Play) -> None:
    async def scene(s: Scene) -> None:
        made = await s.new()
        for number in range(4):
            await s.workbench.answers.send(made, f"question {number}")
        whole = (await s.view(made)).turns
        session = s.workbench.services.sessions.opened(made)  # the only mark of a sample
        session.is_sample = True
        await s.workbench.drafts.leave_out(made, "one more that is rather long, so that there is no room")
        copy = next(row.session_id for row in await s.workbench.sessions.list() if "(copy)" in row.title)
        turns = (await s.view(copy)).turns
        assert turns[-1].run.text == whole[-1].run.text
        assert [turn.node_id for turn in (await s.view(made)).turns] == [turn.node_id for turn in whole]

    play(scene, engine=Engine(options={"context_length": 256}))


def test_an_engine_that_dies_while_turns_are_left_out_is_reported_and_nothing_changes(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked("hello")
        before = await s.view(session_id)
        model = s.workbench.services.supervisor.running

        async def dies(_text: str) -> list[int]:
            raise EngineDiedError("the engine process has ended: signal 9 (SIGKILL)")

        model.tokenize_async = dies  # type: ignore[union-attr, method-assign]  # it runs; fails from now on
        with pytest.raises(Refusal, match="signal 9"):
            await s.workbench.drafts.leave_out(session_id, "x")
        assert s.workbench.status.engine is EngineState.DIED
        assert_same_view(await s.view(session_id), before)

    play(scene)


def has_budget(model: LanguageModel, budget: int) -> bool:
    return model.metrics().kv_budget == budget


def test_the_whole_context_is_offered_if_its_kv_fits_with_its_size(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        model = await s.workbench.services.supervisor.model()
        whole, per_token = model.info.whole_context, model.info.kv_bytes_per_token
        assert (model.info.context_length, whole > 64) == (64, True)
        for budget, fits in ((whole * per_token, True), (whole * per_token - 1, False)):
            await model.set_kv_budget_async(budget)
            await until(partial(has_budget, model, budget))  # reported with the next counts
            found = await s.workbench.drafts.compose(session_id, "x")
            assert (found.can_grow, found.whole_context, found.whole_bytes, found.kv_budget) == (
                fits, whole, whole * per_token, budget,
            )  # fmt: skip

    async def whole_already(s: Scene) -> None:
        await s.workbench.services.supervisor.model()
        found = await s.workbench.drafts.compose(await s.new(), "x")
        assert (found.can_grow, found.whole_context) == (False, None)

    play(scene, engine=Engine(options={"context_length": 64}))
    play(whole_already)
