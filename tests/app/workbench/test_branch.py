"""Other versions of a turn: another token, another try, an edit, a continuation; and selecting them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from app.workbench.prompt.vocabulary import SETTING
from runtime import Finish, GenerationOptions, Origin, SamplingOptions
from storage import vocabulary_digest
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene, alternative, answered, assert_same_run, own_tokens, rows, until, words
from ui import BranchAdded, Refusal, TurnStatus, TurnView


def test_another_token_makes_a_sibling_that_shares_the_prefix_and_computes_one_token(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[4]
        token = alternative(old, at)
        await s.workbench.answers.branch(session_id, old.node_id, at, token)
        view = await s.view(session_id)
        new = view.turns[-1]

        assert_same_run(new.run[:at], old.run[:at])
        assert int(new.run.ids[at]) == token
        assert len(own_tokens(new)) == 5 + 12
        assert new.variants == (old.node_id, new.node_id)
        assert new.variant == 1
        assert new.stats is not None
        assert new.stats.computed == 1
        assert new.stats.reused == len(await s.path_ids(session_id)) - 12 - 1
        assert s.workbench.status.reused == new.stats.reused
        assert s.engine.prompts[-1] == (await s.path_ids(session_id))[:-12]
        assert [(b.on_path, b.current) for b in view.branches] == [(True, False), (False, False), (True, True)]

    play(scene)


def test_an_invalid_token_is_refused(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        with pytest.raises(Refusal, match="there is no token -1"):
            await s.workbench.answers.branch(session_id, old.node_id, own_tokens(old)[4], -1)
        assert (await s.last(session_id)).variants == (old.node_id,)

    play(scene)


def test_the_picked_token_has_the_numbers_of_the_record_it_replaces(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[4]
        rank = int(old.run.rank[at])
        token = alternative(old, at)
        place = old.run.top_ids[at].tolist().index(token)
        await s.workbench.answers.branch(session_id, old.node_id, at, token)
        picked, was = (await s.last(session_id)).run.record(at), old.run.record(at)

        assert picked.origin is Origin.PICKED
        assert (picked.entropy, picked.covered_mass) == (was.entropy, was.covered_mass)
        assert (picked.top_ids, picked.top_logprobs) == (was.top_ids, was.top_logprobs)
        assert picked.logprob == was.top_logprobs[place]
        assert picked.rank == place + 1 != rank
        assert picked.token_bytes == s.workbench.answers.token_text(session_id, [token])[0]

    play(scene)


def test_a_chosen_token_is_saved_before_the_model_continues(play: Play, tmp_path: Path) -> None:
    half = 0xE0  # the first byte of a character: its text does not determine the token
    copy = tmp_path / "copy" / "sessions.db"

    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[4]

        def copied(_: str) -> None:  # as found by a process that starts after this one was killed
            if not copy.parent.exists():
                copy.parent.mkdir()
                for file in s.path.parent.glob(f"{s.path.name}*"):
                    shutil.copyfile(file, copy.with_name(file.name.replace(s.path.name, copy.name)))

        s.engine.on_look = copied
        await s.workbench.answers.branch(session_id, old.node_id, at, half)
        assert int((await s.last(session_id)).run.ids[at]) == half
        other = Scene.open(copy, Engine())
        new = await other.last(session_id)
        assert new.run.ids.tolist() == [*old.run.ids[:at].tolist(), half]
        assert new.run.origin[-1] == Origin.PICKED
        assert new.status is TurnStatus.PARTIAL
        await other.workbench.close()

    play(scene)


def test_typed_words_make_a_sibling_that_the_model_continues(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[4]
        await s.workbench.answers.write(session_id, old.node_id, at, " two words")
        new = await s.last(session_id)
        written = words(" two words")

        assert_same_run(new.run[:at], old.run[:at])
        assert new.run.ids[at : at + len(written)].tolist() == written
        assert set(new.run.origin[at : at + len(written)].tolist()) == {int(Origin.TYPED)}
        assert not np.isnan(new.run.logprob[at : at + len(written)]).any()  # they have the model's log-probabilities
        assert len(own_tokens(new)) == 4 + len(written) + 12
        assert new.variants == (old.node_id, new.node_id)
        assert s.engine.prompts[-1] == (await s.path_ids(session_id))[:-12]
        # read again from the store, it is the same
        view = await s.workbench.branches.select(session_id, old.node_id)
        assert_same_run(view.turns[-1].run, old.run)
        view = await s.workbench.branches.select(session_id, new.node_id)
        assert_same_run(view.turns[-1].run, new.run)
        # nothing, and words in a message, are refused
        question = view.turns[-2]
        for node_id, text, why in ((new.node_id, "", "write what"), (question.node_id, "x", "your own text")):
            with pytest.raises(Refusal, match=why):
                await s.workbench.answers.write(session_id, node_id, len(question.run) - 1, text)

    play(scene)


def test_words_tokenised_while_they_were_typed_are_not_tokenised_again(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[4]
        for text in (" two", " two words"):
            await s.workbench.answers.tokenise(text)
        before = list(s.engine.tokenised)
        await s.workbench.answers.write(session_id, old.node_id, at, " two words")
        assert s.engine.tokenised == before
        written = words(" two words")
        assert (await s.last(session_id)).run.ids[at : at + len(written)].tolist() == written
        # other words are tokenised
        await s.workbench.answers.write(session_id, old.node_id, at, " two")
        assert s.engine.tokenised == [*before, " two"]

    play(scene)


def test_words_that_are_being_tokenised_are_not_requested_twice(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[4]
        answers = s.workbench.answers
        await asyncio.gather(answers.tokenise(" two words"), answers.write(session_id, old.node_id, at, " two words"))
        assert s.engine.tokenised.count(" two words") == 1

    play(scene)


def test_the_model_continues_a_typed_token_before_its_numbers_arrive(play: Play) -> None:
    seen: list[str] = []
    made: list[tuple[int, TurnView]] = []

    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[4]
        model = s.workbench.services.supervisor.running
        assert model is not None
        computed = model.metrics().tokens_prefilled
        s.engine.on_look, s.engine.scores = seen.append, asyncio.Event()
        writing = asyncio.create_task(s.workbench.answers.write(session_id, old.node_id, at, "~"))
        before = s.arrived(session_id)
        await until(lambda: s.arrived(session_id) == before + 12)
        await until(lambda: seen == ["generate", "score"])
        s.engine.scores.set()
        await writing
        new = await s.last(session_id)
        made.append((session_id, new))
        # the numbers equal those of the text scored by itself, and cost as much as if they had been computed first
        ids = (await s.path_ids(session_id))[:-12]
        s.engine.scores, prefilled = None, model.metrics().tokens_prefilled
        alone = await model.score_run(ids, start=len(ids) - 1)
        for name in ("ids", "logprob", "rank", "entropy", "covered_mass"):
            np.testing.assert_array_equal(getattr(new.run[at : at + 1], name), getattr(alone, name), err_msg=name)
        assert new.run.record(at).top_ids == alone.record(0).top_ids
        assert new.stats is not None
        assert new.stats.computed == 1
        assert prefilled == computed + 2

    async def later(s: Scene) -> None:
        session_id, new = made[0]
        assert_same_run((await s.last(session_id)).run, new.run)

    play(scene)
    play(later)


def test_a_typed_token_gets_its_numbers_later_if_the_answer_was_stopped_before(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[4]
        s.engine.scores, s.engine.holds_after = asyncio.Event(), 3
        writing = asyncio.create_task(s.workbench.answers.write(session_id, old.node_id, at, "~"))
        before = s.arrived(session_id)
        await until(lambda: s.arrived(session_id) == before + 3)
        s.workbench.answers.stop(session_id)
        await writing
        new = await s.last(session_id)
        assert new.status is TurnStatus.PARTIAL
        assert new.run.origin[at] == Origin.TYPED
        assert np.isnan(new.run.logprob[at])
        s.engine.scores = s.engine.holds_after = None
        await s.workbench.answers.send(session_id, "more")
        turn = (await s.view(session_id)).turns[-3]
        assert turn.node_id == new.node_id
        assert not np.isnan(turn.run.logprob[1:]).any()

    play(scene)


def test_branching_loses_nothing_and_select_shows_the_old_branch(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        await s.workbench.answers.branch(session_id, old.node_id, own_tokens(old)[2], alternative(old, own_tokens(old)[2]))
        new = await s.last(session_id)

        view = await s.workbench.branches.select(session_id, old.node_id)
        assert_same_run(view.turns[-1].run, old.run)
        assert view.turns[-1].variant == 0
        view = await s.workbench.branches.select(session_id, new.node_id)
        assert_same_run(view.turns[-1].run, new.run)

    play(scene)


def test_a_branch_can_be_branched_inside_and_at_its_first_token(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[3]
        await s.workbench.answers.branch(session_id, old.node_id, at, alternative(old, at))
        child = await s.last(session_id)
        third = next(int(t) for t in child.run.top_ids[at] if t not in (child.run.ids[at], old.run.ids[at]))
        await s.workbench.answers.branch(session_id, child.node_id, at, third)  # the child's own first token
        beside = await s.last(session_id)
        await s.workbench.answers.branch(session_id, beside.node_id, at + 2, alternative(beside, at + 2))
        deeper = await s.last(session_id)

        assert deeper.variants == (old.node_id, child.node_id, beside.node_id, deeper.node_id)
        assert_same_run(beside.run[:at], old.run[:at])
        assert int(beside.run.ids[at]) == third
        assert_same_run(deeper.run[: at + 2], beside.run[: at + 2])
        places = rows(s.path, "SELECT parent_id, at_token FROM nodes WHERE id IN (?, ?)", child.node_id, beside.node_id)
        assert places[0] == places[1]

    play(scene)


def test_a_branch_at_the_start_of_a_continuation_keeps_the_text_before_it(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        await s.workbench.answers.continue_turn(session_id, old.node_id)
        longer = await s.last(session_id)
        at = len(old.run)
        await s.workbench.answers.branch(session_id, longer.node_id, at, alternative(longer, at))
        other = await s.last(session_id)

        assert_same_run(other.run[:at], old.run)  # all of it comes before the branch
        assert int(other.run.ids[at]) != int(longer.run.ids[at])
        assert set(other.variants) == {longer.node_id, other.node_id}

    play(scene)


def test_picking_the_end_of_the_text_ends_the_answer(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[1]
        await s.workbench.answers.branch(session_id, old.node_id, at, 257)
        new = await s.last(session_id)
        assert new.status is TurnStatus.COMPLETE
        assert len(new.run) == at + 1
        assert int(new.run.finish[-1]) == Finish.EOS
        assert int(new.run.rank[-1]) > 0  # outside the top-k it had no numbers to copy

    play(scene)


def test_regenerate_makes_another_answer_under_the_same_question(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        await s.workbench.answers.regenerate(session_id, old.node_id)
        view = await s.view(session_id)
        new = view.turns[-1]
        header = own_tokens(old)[0]

        assert new.variants == (old.node_id, new.node_id)
        assert_same_run(new.run[:header], old.run[:header])
        assert new.run.ids[header:].tolist() != old.run.ids[header:].tolist()
        assert len(view.turns) == 3
        assert new.stats is not None
        assert new.stats.computed in (0, 1)  # the question is in the cache

    play(scene, options=GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=0.8)))  # a fresh seed each


def test_an_edited_message_is_a_sibling_of_the_old_one(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        await s.workbench.answers.send(session_id, "and then?")
        first = (await s.view(session_id)).turns[1]
        await s.workbench.answers.send(session_id, "where from?", replaces=first.node_id)
        view = await s.view(session_id)

        assert [turn.role for turn in view.turns] == ["system", "user", "assistant"]
        edited = view.turns[1]
        assert edited.variants == (first.node_id, edited.node_id)
        assert edited.run.text.count("where from?") == 1
        back = await s.workbench.branches.select(session_id, first.node_id)
        assert len(back.turns) == 5
        assert_same_run(back.turns[2].run, old.run)
        second = back.turns[3]
        await s.workbench.answers.send(session_id, "or then?", replaces=second.node_id)
        assert (await s.view(session_id)).turns[3].variants[0] == second.node_id
        assert_same_run((await s.view(session_id)).turns[2].run, old.run)

    play(scene)


def test_continuing_keeps_the_earlier_text(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        await s.workbench.answers.continue_turn(session_id, old.node_id)
        new = await s.last(session_id)
        assert_same_run(new.run[: len(old.run)], old.run)
        assert len(new.run) == len(old.run) + 12
        assert new.variants == (new.node_id,)
        assert len((await s.view(session_id)).turns) == 3

    play(scene)


def test_an_answer_that_has_a_reply_can_be_continued(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        await s.workbench.answers.send(session_id, "and then?")
        await s.workbench.answers.continue_turn(session_id, old.node_id)
        longer = await s.last(session_id)
        assert longer.variants == (old.node_id, longer.node_id)

        back = await s.workbench.branches.select(session_id, old.node_id)  # the version with the reply
        assert [turn.role for turn in back.turns] == ["system", "user", "assistant", "user", "assistant"]
        assert back.turns[2].variant == 0
        forth = await s.workbench.branches.select(session_id, longer.node_id)
        assert forth.turns[-1].variant == 1

    play(scene)


def test_the_cache_never_changes_the_numbers_of_a_path(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        await s.workbench.answers.branch(session_id, old.node_id, own_tokens(old)[5], alternative(old, own_tokens(old)[5]))
        await s.workbench.answers.send(session_id, "more")
        turns = (await s.view(session_id)).turns
        model = s.workbench.services.supervisor.running
        assert model is not None
        await model.clear_cache_async()
        alone = await model.score_run(await s.path_ids(session_id))
        ranks = np.concatenate([turn.run.rank for turn in turns])
        logprobs = np.concatenate([turn.run.logprob for turn in turns])
        np.testing.assert_array_equal(ranks, alone.rank)
        np.testing.assert_allclose(logprobs, alone.logprob, atol=1e-5)

    play(scene)


@pytest.mark.parametrize(
    "way", ["another token", "words", "regenerate", "regenerate exactly", "edit", "edited answer", "system prompt", "as text"]
)
def test_a_branch_shows_its_fork_and_both_sides_can_be_selected(play: Play, way: str) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        await s.workbench.answers.continue_turn(session_id, old.node_id)
        assert not [event for event in s.events if isinstance(event, BranchAdded)]  # no branch so far
        path = (await s.view(session_id)).turns
        at, last, answers = own_tokens(old)[3], path[-1].node_id, s.workbench.answers
        setup, said = s.workbench.setup, "Answer in verse."
        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "system prompt": lambda: setup.set_system(session_id, said),
            "as text": lambda: answers.open_as_text(session_id, path[1].node_id),
            "another token": lambda: answers.branch(session_id, old.node_id, at, alternative(old, at)),
            "words": lambda: answers.write(session_id, old.node_id, at, " indeed"),
            "regenerate": lambda: answers.regenerate(session_id, last),
            "regenerate exactly": lambda: answers.regenerate_exactly(session_id, old.node_id),
            "edit": lambda: answers.send(session_id, "in other words", path[1].node_id),
            "edited answer": lambda: answers.send(session_id, "something else", last),
        }
        await ways[way]()
        (told,) = [event for event in s.events if isinstance(event, BranchAdded)]
        new = (await s.view(session_id)).turns
        assert (told.session_id, told.before) == (session_id, last)
        for node, turns in ((told.before, path), (told.after, new)):
            view = await s.workbench.branches.select(session_id, node)
            assert [turn.node_id for turn in view.turns] == [turn.node_id for turn in turns]
            assert_same_run(view.turns[-1].run, turns[-1].run)
        if way == "system prompt":  # and to an existing one
            s.events.clear()
            await setup.set_system(session_id, "")
            assert [event.before for event in s.events if isinstance(event, BranchAdded)] == [told.after]

    play(scene)


def test_a_chosen_token_is_one_of_the_running_model_not_of_the_last_used_one(play: Play) -> None:
    kept: list[int] = []

    async def first(s: Scene) -> None:
        session_id, _ = await answered(s)
        kept.append(session_id)
        others = [b"?"] * 300
        await s.store.save_vocabulary(vocabulary_digest(others), others)
        await s.store.set_setting(SETTING, vocabulary_digest(others))

    async def second(s: Scene) -> None:
        old = await s.last(kept[0])
        await s.workbench.services.supervisor.model()
        at, token = own_tokens(old)[4], ord("x")
        await s.workbench.answers.branch(kept[0], old.node_id, at, token)
        new = (await s.last(kept[0])).run
        assert (int(new.ids[at]), new.token_bytes[at]) == (token, b"x")

    play(first)
    play(second)
