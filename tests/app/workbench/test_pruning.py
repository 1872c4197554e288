"""Pruned branches: hidden in the outline and among the variants, kept in the store, shown again on request."""

from __future__ import annotations

import pytest

from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Scene, alternative, answered, own_tokens, rows
from ui import BranchRow, Refusal, SessionView


async def branched(s: Scene) -> tuple[SessionView, int, int]:
    """A session whose answer has two versions; the old node and the new one, which is shown."""
    session_id, old = await answered(s)
    at = own_tokens(old)[4]
    await s.workbench.answers.branch(session_id, old.node_id, at, alternative(old, at))
    view = await s.view(session_id)
    return view, old.node_id, view.turns[-1].node_id


def row_of(view: SessionView, node_id: int, *, inner: bool = False) -> BranchRow:
    return next(row for row in view.branches if row.node_id == node_id and (row.start > 0) == inner)


def test_a_pruned_branch_is_not_a_variant_and_marked_in_the_outline(play: Play) -> None:
    async def scene(s: Scene) -> None:
        view, old, new = await branched(s)
        rest = row_of(view, old, inner=True)  # the old answer after the fork
        await s.workbench.branches.prune(view.session_id, rest.node_id, rest.start, True)
        pruned = await s.view(view.session_id)
        assert pruned.turns[-1].variants == (new,)
        assert [row.pruned for row in pruned.branches] == [row == rest for row in view.branches]
        # nothing is lost: it is restored unchanged
        await s.workbench.branches.prune(view.session_id, rest.node_id, rest.start, False)
        back = await s.view(view.session_id)
        assert back.turns[-1].variants == view.turns[-1].variants == (old, new)
        assert back.branches == view.branches

    play(scene)


def test_pruning_the_shown_branch_shows_the_latest_remaining_one(play: Play) -> None:
    async def scene(s: Scene) -> None:
        view, old, new = await branched(s)
        await s.workbench.branches.prune(view.session_id, new, 0, True)
        shown = await s.view(view.session_id)
        assert shown.turns[-1].node_id == old
        assert shown.turns[-1].variants == (old,)
        # the last one cannot be pruned
        rest = row_of(shown, old, inner=True)
        with pytest.raises(Refusal, match="the only branch"):
            await s.workbench.branches.prune(view.session_id, old, rest.start, True)
        assert (await s.view(view.session_id)).turns[-1].node_id == old

    play(scene)


@pytest.mark.parametrize("whole", [True, False])
def test_branches_inside_a_branch_are_pruned_only_with_the_whole_of_it(play: Play, whole: bool) -> None:
    # given a branch that others leave after its second token: beams, some of which may begin alike
    async def scene(s: Scene) -> None:
        view, old, new = await branched(s)
        at = own_tokens(view.turns[-1])[6]
        assert view.turns[-1].run.ids[4:at].size
        await s.workbench.continuations.beams(view.session_id, new, at, 3)
        before = await s.view(view.session_id)
        beams = [row.node_id for row in before.branches if row.node_id > new]
        rest = row_of(before, new, inner=True)
        assert len(beams) == 3
        assert rest.current
        # when all of it is pruned, or only its part from there on
        await s.workbench.branches.prune(view.session_id, new, 0 if whole else rest.start, True)
        # then they are pruned with it, or one of them is shown
        pruned = await s.view(view.session_id)
        gone = [(new, 0), (new, rest.start), *((beam, 0) for beam in beams)] if whole else [(new, rest.start)]
        assert [(row.node_id, row.start) for row in pruned.branches if row.pruned] == gone
        assert pruned.turns[-1].node_id == (old if whole else max(beams))
        assert pruned.turns[-1].variants == ((old,) if whole else (old, *beams))

    play(scene)


def test_a_pruned_branch_and_its_descendants_stay_pruned_after_a_restart(play: Play) -> None:
    kept: dict[str, int] = {}

    async def evening(s: Scene) -> None:
        view, old, new = await branched(s)
        await s.workbench.answers.send(view.session_id, "and then?")  # continues the new version
        await s.workbench.branches.select(view.session_id, old)
        await s.workbench.branches.prune(view.session_id, new, 0, True)
        kept.update(session=view.session_id, new=new)

    async def morning(s: Scene) -> None:
        view = await s.view(kept["session"])
        row = next(row for row in view.branches if row.node_id == kept["new"])
        assert row.pruned
        assert len(view.turns[-1].variants) == 1
        # a path under it can still be selected
        shown = await s.workbench.branches.select(kept["session"], kept["new"])
        assert shown.turns[-1].role == "assistant"
        assert len(shown.turns) == 5
        assert rows(s.path, "select count(*) from nodes where session_id = ?", kept["session"]) == [(6,)]

    play(evening)
    play(morning)


def test_invalid_branches_are_refused(play: Play) -> None:
    async def scene(s: Scene) -> None:
        view, _, new = await branched(s)
        for node_id, start in ((9999, 0), (new, -1)):
            with pytest.raises(Refusal, match="not part of this session"):
                await s.workbench.branches.prune(view.session_id, node_id, start, True)

    play(scene)


def test_a_rows_width_is_the_mean_probability_of_its_tokens(play: Play) -> None:
    async def scene(s: Scene) -> None:
        view, _, new = await branched(s)
        row = row_of(view, new)
        turn = view.turns[-1]
        assert row.logprob is not None
        assert turn.stats is not None
        assert row.likely == pytest.approx(pow(2.718281828459045, row.logprob / 12))
        question = view.branches[0]
        assert question.likely is None

    play(scene)


def test_the_name_of_a_branch_is_stored_with_its_session(play: Play) -> None:
    held: list[int] = []

    async def scene(s: Scene) -> None:
        view, old, new = await branched(s)
        held.append(view.session_id)
        rest = row_of(view, old, inner=True)
        await s.workbench.branches.rename(view.session_id, rest.node_id, rest.start, "  the quiet\none ")
        await s.workbench.branches.rename(view.session_id, new, 0, "x" * 500)
        named = await s.view(view.session_id)
        assert row_of(named, old, inner=True).given == "the quiet one"
        assert row_of(named, new).given == "x" * 80
        await s.workbench.branches.rename(view.session_id, new, 0, "")
        assert row_of(await s.view(view.session_id), new).given == ""
        with pytest.raises(Refusal):
            await s.workbench.branches.rename(view.session_id, 10_000, 0, "nothing")

    async def again(s: Scene) -> None:
        view = await s.view(held[0])
        assert [row.given for row in view.branches if row.given] == ["the quiet one"]

    play(scene)
    play(again)
