"""A message and its answer: saved before the model sees it, streamed, scored, kept."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from runtime import Finish, GenerationOptions, Origin, SamplingOptions, TokenRun, load
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene, own_tokens, rows, words
from ui import EngineState, Refusal, SessionChanged, TokensArrived, TurnStatus

ENDS = (257, 258)


def turn_ids(text: str) -> list[int]:
    """A message and the header of its answer, in the toy models' ChatML."""
    return [256, *words("user\n" + text), 257, *words("\n"), 256, *words("assistant\n")]


def test_the_message_is_saved_before_the_model_gets_it(play: Play) -> None:
    seen: list[tuple[str, list[tuple[object, ...]], int]] = []

    async def scene(s: Scene) -> None:
        def look(what: str) -> None:
            nodes = rows(s.path, "SELECT text, status FROM nodes WHERE role = 'user'")
            ids = rows(s.path, "SELECT count(*) FROM token_chunks c JOIN nodes n ON n.id = c.node_id WHERE n.role = 'user'")
            seen.append((what, nodes, int(ids[0][0])))

        s.engine.on_look = look
        await s.asked("where to?")

    play(scene)

    assert [what for what, _, _ in seen] == ["start", "score", "generate"]
    assert all(nodes == [("where to?", "complete")] for _, nodes, _ in seen)
    assert seen[0][2] == 0
    assert seen[1][2] == 1  # the ids too: scored tokens are saved


def test_an_answer_streams_to_the_window_and_ends_complete_or_at_its_limit(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked()
        answer = await s.last(session_id)

        streamed = TokenRun.concat([e.run for e in s.events if isinstance(e, TokensArrived)])
        own = own_tokens(answer)
        assert streamed.ids.tolist() == answer.run.ids[own].tolist()
        assert len(streamed) == 12
        assert answer.status is TurnStatus.PARTIAL
        assert answer.note == "reached the length limit"
        assert answer.run.record(len(answer.run) - 1).finish_reason == "length"
        states = [e.view.turns[-1].status for e in s.events if isinstance(e, SessionChanged) and e.view.turns]
        assert TurnStatus.WAITING in states
        assert s.workbench.status.engine is EngineState.READY

    play(scene)


def test_the_path_consists_of_the_prompt_and_the_answer(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked("one")
        await s.workbench.answers.send(session_id, "two")
        ids = await s.path_ids(session_id)
        view = await s.view(session_id)

        made = own_tokens(view.turns[-1])
        assert s.engine.prompts[1] == ids[: len(ids) - len(made)]
        first = [view.turns[2].run.ids.tolist()[i] for i in own_tokens(view.turns[2])]
        end = [] if first[-1] in ENDS else [257]  # it may have been stopped by its limit
        assert s.engine.prompts[1] == [*turn_ids("one"), *first, *end, 10, *turn_ids("two")]
        assert [turn.role for turn in view.turns] == ["system", "user", "assistant", "user", "assistant"]

    play(scene)


def test_every_prompt_token_has_the_models_numbers_on_the_screen_and_in_the_file(play: Play) -> None:
    shown: list[TokenRun] = []

    async def scene(s: Scene) -> None:
        session_id = await s.asked("one")
        await s.workbench.answers.send(session_id, "two")
        shown.extend(turn.run for turn in (await s.view(session_id)).turns)

        stored = await s.store.load_tokens([1, 2, 3, 4, 5])
        held = TokenRun.concat([TokenRun.from_columns(c.columns) for chunks in stored.values() for c in chunks])
        np.testing.assert_array_equal(held.rank, TokenRun.concat(shown).rank)

    play(scene)

    path = TokenRun.concat(shown)
    assert path.rank[0] == 0  # no token precedes it
    assert (path.rank[1:] > 0).all()
    with load("x", backend="fake") as model:
        alone = asyncio.run(model.score_run(path.ids.tolist()))
    np.testing.assert_allclose(path.logprob, alone.logprob, atol=1e-5)
    np.testing.assert_array_equal(path.rank, alone.rank)
    np.testing.assert_allclose(path.entropy, alone.entropy, atol=1e-5)


def test_a_second_message_computes_only_new_tokens(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked("one")
        before = len(await s.path_ids(session_id))
        await s.workbench.answers.send(session_id, "two")
        answer = await s.last(session_id)
        assert answer.stats is not None
        assert answer.stats.reused == before - 1  # the last drawn token was never pushed
        assert answer.stats.computed == len(s.engine.prompts[-1]) - answer.stats.reused

    play(scene)


def test_an_answer_ended_by_the_model_is_complete(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked()
        answer = await s.last(session_id)
        assert answer.status is TurnStatus.COMPLETE
        assert answer.note == ""
        assert int(answer.run.finish[-1]) == Finish.EOS
        with pytest.raises(Refusal, match="the model ended it itself"):
            await s.workbench.answers.continue_turn(session_id, answer.node_id)
        await s.workbench.answers.send(session_id, "two")
        user = (await s.view(session_id)).turns[-2]
        assert user.run.token_bytes[0] == b"\n"  # the end token belongs to the answer, the newline to the next header

    play(scene, options=eos_soon())


def eos_soon() -> GenerationOptions:
    """Hot sampling with a seed under which the toy model draws its end."""
    return GenerationOptions(max_tokens=4000, sampling=SamplingOptions(temperature=8.0), seed=1)


def test_the_title_is_the_first_message_unless_the_session_was_renamed(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked("  where  to\ngo, " + "x" * 100)
        assert (await s.view(session_id)).title == ("where to go, " + "x" * 100)[:59] + "…"
        named = await s.new()
        await s.workbench.sessions.rename(named, "Trip")
        await s.workbench.answers.send(named, "hello")
        assert (await s.view(named)).title == "Trip"
        assert [row.title for row in await s.workbench.sessions.list("trip")] == ["Trip"]

    play(scene)


@pytest.mark.parametrize("text", ["", "   ", "\n\t"])
def test_an_empty_message_is_refused_and_leaves_nothing(play: Play, text: str) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        with pytest.raises(Refusal, match="write a message first"):
            await s.workbench.answers.send(session_id, text)
        assert rows(s.path, "SELECT count(*) FROM nodes") == [(0,)]
        assert s.engine.starts == 0

    play(scene)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("tab\tbell\x07esc\x1b[31m", "tab\tbell\x07esc\x1b[31m"),
        ("half \ud83d a pair", "half \ufffd a pair"),
        ("whole \ud83d\ude00 pair", "whole 😀 pair"),
        ("nul \0 inside", "nul \ufffd inside"),
        ("say <|im_end|> twice <|im_start|>", "say <|im_end|> twice <|im_start|>"),
        ("<|im_end|>", "<|im_end|>"),
        ("end", "end"),
        (">", ">"),
        ("user", "user"),
        ("  spaces around  ", "  spaces around  "),
    ],
)
def test_special_tokens_in_a_message_stay_text(play: Play, typed: str, kept: str) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked(typed)
        user = (await s.view(session_id)).turns[1]
        typed_ids = [i for i, o in zip(user.run.ids.tolist(), user.run.origin.tolist(), strict=True) if o == Origin.TYPED]
        assert typed_ids == words(kept)  # bytes, no control token
        assert rows(s.path, "SELECT text FROM nodes WHERE role = 'user'") == [(kept,)]
        assert s.engine.prompts[0] == turn_ids(kept)

        await s.workbench.answers.send(session_id, "two")
        assert s.engine.prompts[1][: len(turn_ids(kept))] == turn_ids(kept)
        *before, newline = s.engine.prompts[1][: -len(turn_ids("two"))]
        assert (before[-1] in ENDS, newline) == (True, 10)

    play(scene)


def test_a_prompt_longer_than_the_context_is_refused_with_the_numbers_before_anything_is_computed(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked("x" * 100)
        answer = await s.last(session_id)
        model = s.workbench.services.supervisor.running
        assert model is not None
        assert model.metrics().tokens_computed == 0
        length = 100 + len("<user\n>\n<assistant\n")
        assert f"{length} tokens do not fit into the context of 64 ({length - 64} too many)" in answer.note
        assert answer.status is TurnStatus.PARTIAL
        assert (await s.view(session_id)).turns[1].run.text.endswith("x" * 100 + "<|im_end|>")

        question = (await s.view(session_id)).turns[1]
        await s.workbench.answers.send(session_id, "short", replaces=question.node_id)  # the way out
        assert (await s.last(session_id)).note == "reached the length limit"

    play(scene, engine=Engine(options={"context_length": 64}))


def test_an_answer_that_fills_the_context_has_a_note(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked("x" * 40)
        answer = await s.last(session_id)
        assert answer.note == "the context is full"
        assert 0 < len(own_tokens(answer)) < 12

    play(scene, engine=Engine(options={"context_length": 64}))


def test_two_concurrent_sends_make_one_turn(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        answers = await asyncio.gather(
            s.workbench.answers.send(session_id, "one"), s.workbench.answers.send(session_id, "two"), return_exceptions=True
        )
        assert answers[0] is None
        assert isinstance(answers[1], Refusal)
        assert rows(s.path, "SELECT text FROM nodes WHERE role = 'user'") == [("one",)]

    play(scene)


def test_invalid_requests_are_refused_with_the_reason(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked()
        view = await s.view(session_id)
        answer, user = view.turns[-1].node_id, view.turns[-2].node_id
        refused = [
            (s.workbench.answers.send(99, "x"), "not open"),
            (s.workbench.answers.send(session_id, " ", replaces=answer), "write what the answer should say"),
            (s.workbench.answers.send(session_id, "x", replaces=99), "not part of this session"),
            (s.workbench.answers.regenerate(session_id, user), "edit your own"),
            (s.workbench.answers.regenerate(session_id, 99), "not part of this session"),
            (s.workbench.answers.continue_turn(session_id, user), "nothing to continue"),
            (s.workbench.answers.branch(session_id, user, 7, 65), "your own text"),
            (s.workbench.answers.branch(session_id, answer, 0, 65), "belongs to the template"),
            (s.workbench.answers.branch(session_id, answer, 999, 65), "not part of this session"),
            (s.workbench.answers.branch(session_id, 99, 0, 65), "not part of this session"),
            (s.workbench.branches.select(session_id, 99), "not part of this session"),
            (s.workbench.sessions.rename(session_id, " "), "at least one character"),
            (s.workbench.sessions.open(99), "99"),
        ]
        for work, match in refused:
            with pytest.raises(Refusal, match=match):
                await work
        assert rows(s.path, "SELECT count(*) FROM nodes") == [(3,)]

    play(scene)


def test_a_draft_is_counted_once_the_engine_runs(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        assert (await s.workbench.drafts.compose(session_id, "draft")).tokens is None
        await s.workbench.answers.send(session_id, "hello")
        counted = await s.workbench.drafts.compose(session_id, "draft \ud800")
        assert counted.tokens == len("draft ") + 3
        assert counted.context_used == len(await s.path_ids(session_id)) + len("draft ") + 3

    play(scene)


def test_a_model_without_roles_continues_the_text(play: Play) -> None:
    async def scene(s: Scene) -> None:
        # given a base model without a chat template
        session_id = await s.new()
        await s.workbench.setup.set_system(session_id, "A tale.")
        await s.workbench.answers.send(session_id, "Once upon a")
        first = (await s.view(session_id)).turns
        assert [turn.role for turn in first] == ["system", "user", "assistant"]
        assert (first[0].run.text, first[1].run.text) == ("A tale.\n\n", "Once upon a")
        assert all(origin != Origin.TEMPLATE for origin in first[1].run.origin.tolist())
        # then the answer follows the text directly, and the next text follows the answer
        await s.workbench.answers.send(session_id, " and then")
        prompt = s.engine.prompts[-1]
        assert bytes(prompt) == b"A tale.\n\nOnce upon a" + b"".join(first[2].run.token_bytes) + b" and then"
        composition = await s.workbench.drafts.compose(session_id, "more")
        assert not composition.takes_roles
        facts = (await s.workbench.setup.view(session_id)).model
        assert facts is not None
        assert not facts.takes_roles
        # and regenerating gives another continuation of the same text
        await s.workbench.answers.regenerate(session_id, first[2].node_id)
        assert bytes(s.engine.prompts[-1]) == b"A tale.\n\nOnce upon a"

    play(scene, engine=Engine(options={"chat_format": "none"}))


def test_a_long_first_message_gives_a_title_of_whole_words(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked("tell me in three sentences why rain smells good, then list five words")
        title = (await s.view(session_id)).title
        assert title == "tell me in three sentences why rain smells good, then list…"

    play(scene)
