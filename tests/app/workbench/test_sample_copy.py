"""A change of the sample goes into a copy, and the sample is not changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from app.sample import ensure_sample
from app.workbench.prompt.recorder import chunk
from app.workbench.sessions.copying import copy_title
from runtime import LanguageModel, ModelLoadError, TokenRun, load
from storage import NewNode
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Scene, alternative, assert_same_view, own_tokens, rows
from tests.app.workbench.test_engine_faults import Shifted
from ui import Refusal, SessionCopied, SessionView, TurnStatus, TurnView

Change = Callable[[Scene, int, TurnView], Awaitable[None]]


async def recorded(s: Scene) -> SessionView:
    """Given: a sample that was recorded from the model of these tests, opened; with a branch inside its answer."""
    session_id = await s.asked("tell me of the sea")
    first = await s.last(session_id)
    at = own_tokens(first)[3]
    await s.workbench.answers.branch(session_id, first.node_id, at, alternative(first, at))
    tree = await s.store.load_session(session_id)
    tokens = await s.store.load_tokens([node.id for node in tree.nodes])
    sample = await s.store.create_session("The sea", is_sample=True)
    numbers: dict[int | None, int | None] = {None: None}
    for node in tree.nodes:
        new = NewNode(
            sample,
            numbers[node.parent_id],
            cast("Any", node.role),
            node.text,
            node.at_token,
            node.at_byte,
            node.turn_start,
            finish_reason=node.finish_reason,
            stats=node.stats,
            status="complete" if node.status == "complete" else "partial",
        )
        run = TokenRun.concat([TokenRun.from_columns(tile.columns) for tile in tokens[node.id]])
        fingerprint = node.kv_fingerprint
        numbers[node.id] = await s.store.add_node(new, None if fingerprint is None else chunk(run, fingerprint), current=True)
    s.events.clear()
    return await s.view(sample)


def copied(s: Scene) -> SessionView:
    """The one copy that was reported to the window."""
    [event] = [event for event in s.events if isinstance(event, SessionCopied)]
    return event.view


async def send(s: Scene, sample: int, _: TurnView) -> None:
    await s.workbench.answers.send(sample, "and then?")


async def edit(s: Scene, sample: int, _: TurnView) -> None:
    question = next(turn for turn in (await s.view(sample)).turns if turn.role == "user")
    await s.workbench.answers.send(sample, "tell me of the land", question.node_id)


async def branch(s: Scene, sample: int, answer: TurnView) -> None:
    at = own_tokens(answer)[5]
    await s.workbench.answers.branch(sample, answer.node_id, at, alternative(answer, at))


async def regenerate(s: Scene, sample: int, answer: TurnView) -> None:
    await s.workbench.answers.regenerate(sample, answer.node_id)


async def go_on(s: Scene, sample: int, answer: TurnView) -> None:
    await s.workbench.answers.continue_turn(sample, answer.node_id)


async def columns(s: Scene, sample: int, answer: TurnView) -> None:
    await s.workbench.continuations.continue_many(sample, answer.node_id, own_tokens(answer)[5], 2)


async def beams(s: Scene, sample: int, answer: TurnView) -> None:
    await s.workbench.continuations.beams(sample, answer.node_id, own_tokens(answer)[5], 2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("change", "turns", "variants"),
    [(send, 5, 1), (edit, 3, 1), (branch, 3, 3), (regenerate, 3, 3), (go_on, 3, 2), (columns, 3, 4), (beams, 3, 4)],
)
def test_a_change_of_the_sample_goes_into_a_copy(play: Play, change: Change, turns: int, variants: int) -> None:
    async def scene(s: Scene) -> None:
        sample = await recorded(s)
        before = rows(s.path, "SELECT * FROM nodes WHERE session_id = ?", sample.session_id)
        # when
        await change(s, sample.session_id, sample.turns[-1])
        # then the copy begins with the shown path, and continues
        began = copied(s)
        assert (began.title, began.is_sample) == (f"{sample.title} (copy)", False)
        assert [turn.run.text for turn in began.turns] == [turn.run.text for turn in sample.turns]
        assert not any("recorded" in turn.note for turn in began.turns)
        view = await s.view(began.session_id)
        assert [len(view.turns), len(view.turns[-1].variants)] == [turns, variants]
        assert view.turns[-1].status is TurnStatus.PARTIAL  # the length limit of these tests
        assert view.turns[-1].note == "reached the length limit"
        assert [row.title for row in await s.workbench.sessions.list()].count(began.title) == 1
        # and the sample is unchanged
        assert rows(s.path, "SELECT * FROM nodes WHERE session_id = ?", sample.session_id) == before
        assert_same_view(await s.view(sample.session_id), sample)
        assert await s.store.verify() == []

    play(scene)


def test_only_new_tokens_are_computed_in_the_copy(play: Play) -> None:
    async def scene(s: Scene) -> None:
        sample = await recorded(s)
        answer = sample.turns[-1]
        at = own_tokens(answer)[5]
        s.engine.prompts.clear()
        await s.workbench.answers.branch(sample.session_id, answer.node_id, at, alternative(answer, at))
        stats = (await s.last(copied(s).session_id)).stats
        assert stats is not None
        assert stats.computed == 1
        assert [len(prompt) - 1 for prompt in s.engine.prompts] == [stats.reused]

    play(scene)


@pytest.mark.parametrize("change", [send, branch, columns])
def test_a_double_click_makes_one_copy_and_one_answer(play: Play, change: Change) -> None:
    async def scene(s: Scene) -> None:
        sample = await recorded(s)
        # when
        ends = await asyncio.gather(*(change(s, sample.session_id, sample.turns[-1]) for _ in range(2)), return_exceptions=True)
        # then
        assert [type(end) for end in ends] == [type(None), Refusal]
        assert copied(s).title == f"{sample.title} (copy)"
        assert rows(s.path, "SELECT count(*) FROM sessions") == [(3,)]

    play(scene)


def test_a_refused_change_makes_no_copy(play: Play) -> None:
    async def scene(s: Scene) -> None:
        sample = await recorded(s)
        question, answer = sample.turns[-2:]
        for work in (
            s.workbench.answers.send(sample.session_id, " \n"),
            s.workbench.answers.send(sample.session_id, " \n", answer.node_id),
            s.workbench.answers.branch(sample.session_id, question.node_id, 0, 65),
            s.workbench.answers.branch(sample.session_id, answer.node_id, 0, 65),  # the template's
            s.workbench.answers.regenerate(sample.session_id, question.node_id),
            s.workbench.answers.continue_turn(sample.session_id, question.node_id),
        ):
            with pytest.raises(Refusal):
                await work
        assert rows(s.path, "SELECT count(*) FROM sessions") == [(2,)]

    play(scene)


def test_a_model_that_cannot_read_the_sample_is_named_and_nothing_is_copied(play: Play) -> None:
    async def scene(s: Scene) -> None:
        sample = await recorded(s)

        async def start(*_: object, **__: object) -> LanguageModel:
            return cast("LanguageModel", Shifted(await asyncio.to_thread(load, "x", backend="fake")))

        await s.workbench.services.supervisor.close()
        s.workbench.services.supervisor.start_engine = start
        await s.workbench.services.supervisor.model()
        with pytest.raises(Refusal, match=r"another tokenizer.*Choose the model it was written with"):
            await s.workbench.answers.send(sample.session_id, "and then?")
        assert rows(s.path, "SELECT count(*) FROM sessions") == [(2,)]

    play(scene)


def test_without_a_model_the_click_is_kept_and_the_turn_names_the_way_out(play: Play) -> None:
    async def scene(s: Scene) -> None:
        sample = await s.view(await ensure_sample(s.store))
        s.engine.refuses = [ModelLoadError("no model 'smollm2' here; fetch it with: `elsewise models get smollm2`")]
        answer = sample.turns[-1]
        at = own_tokens(answer)[3]
        await s.workbench.answers.branch(sample.session_id, answer.node_id, at, alternative(answer, at))
        last = await s.last(copied(s).session_id)
        assert "fetch it with: Settings > Models" in last.note
        assert last.run.ids[-1] == alternative(answer, at)

    play(scene)


def test_copies_have_titles_of_their_own() -> None:
    assert copy_title("Rain", []) == "Rain (copy)"
    assert copy_title("Rain", ["Rain (copy)"]) == "Rain (copy 2)"
    assert copy_title("Rain (copy 2)", ["Rain", "Rain (copy)", "Rain (copy 2)"]) == "Rain (copy 3)"


def test_the_copy_has_the_folder_tags_and_pruned_branches_of_the_sample(play: Play) -> None:
    async def scene(s: Scene) -> None:
        sample = await recorded(s)
        folder = await s.workbench.sessions.create_folder("Seas")
        await s.workbench.sessions.move(sample.session_id, folder)
        await s.workbench.sessions.tag(sample.session_id, ["salt", "water"])
        row = next(row for row in sample.branches if row.depth and not row.on_path)
        await s.workbench.branches.prune(sample.session_id, row.node_id, row.start, True)
        await s.workbench.branches.bookmark(sample.session_id, row.node_id, row.start, True)
        hidden = [each.pruned for each in (await s.view(sample.session_id)).branches]
        assert any(hidden)
        # when
        await s.workbench.answers.send(sample.session_id, "and then?")
        # then
        copy = copied(s).session_id
        listed = next(each for each in await s.workbench.sessions.list() if each.session_id == copy)
        assert (listed.folder_id, tuple(listed.tags)) == (folder, ("salt", "water"))
        assert [each.pruned for each in (await s.view(copy)).branches] == hidden
        assert sum(each.bookmarked for each in await s.workbench.branches.tree(copy)) == 1
        assert rows(s.path, "SELECT count(*) FROM settings WHERE key LIKE 'pruned/%'") == [(0,)]
        # and the pruned branches are deleted with their session
        await s.workbench.sessions.trash(copy)
        await s.workbench.sessions.empty_trash([copy])
        assert rows(s.path, "SELECT count(*) FROM settings WHERE key = ?", f"session/{copy}") == [(0,)]
        assert await s.store.verify() == []

    play(scene)
