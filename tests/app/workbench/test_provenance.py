"""The provenance of an answer is stored with it, and read again."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replace_struct

from app.workbench.answers.provenance import Repeat, options_of, plain_options
from runtime import GenerationOptions, Grammar, ModelLoadError, SamplingOptions, SpeculativeOptions, TokenRun
from runtime.backends.fake import Behaviour
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import OPTIONS, WAYS, Engine, Scene, alternative, assert_same_run, own_tokens, until
from ui import ColumnsChanged, Made, Refusal, TurnView

EVERYTHING = GenerationOptions(
    max_tokens=7,
    sampling=SamplingOptions(temperature=0.5, logit_bias={3: -2.0, 9: 4.5}, banned_tokens=(1,), dry_breakers=("a", 4)),
    stop=("x", "\u00e9"),
    top_k=3,
    stages=True,
    seed=(1 << 64) - 1,
    branch=2,
    speculative=SpeculativeOptions(num_tokens=3),
    adapters=(("poet", 0.5),),
    grammar=Grammar.regex("[a-z]+"),
    grammar_prefix=1,
)


@pytest.mark.parametrize(
    "options",
    [EVERYTHING, GenerationOptions(), replace(EVERYTHING, adapters=(), grammar=None, grammar_prefix=0, eos_token_ids=(0, 2))],
    ids=["all", "none", "base"],
)
def test_options_are_restored_from_json(options: GenerationOptions) -> None:
    stored = json.loads(json.dumps({"options": plain_options(options)}, allow_nan=False))
    assert options_of(stored) == options


def how(s: Scene, session_id: int, turn: TurnView) -> Made:
    made = s.workbench.answers.how_made(session_id, turn.node_id)
    assert made is not None
    return made


def test_every_option_is_shown_with_its_source(play: Play) -> None:
    async def first(s: Scene) -> None:
        session_id = await s.asked()
        check(s, session_id, await s.last(session_id))

    async def second(s: Scene) -> None:
        session_id = (await s.workbench.sessions.list())[0].session_id
        check(s, session_id, await s.last(session_id))
        assert s.engine.starts == 0

    def check(s: Scene, session_id: int, turn: TurnView) -> None:
        made = how(s, session_id, turn)
        settings = {setting.name: (setting.value, setting.source) for setting in made.settings}
        assert settings["temperature"] == ("0.8", "preset")
        assert settings["max_tokens"] == ("12", "preset")
        assert settings["top_p"] == ("1", "default")
        assert len(settings) >= len(SamplingOptions.__slots__) + 8
        assert made.facts["seed"] == "5"
        assert made.facts["engine"].startswith("fake")
        assert made.facts["generated"] == "12 tokens"
        assert made.facts["prompt"] == f"{s.workbench.services.sessions.opened(session_id).path_length() - 12:,} tokens"
        assert made.facts["ended by"] == "the length limit"
        assert {"reused", "computed", "first token after", "decoded in", "fingerprint"} <= set(made.facts)

    play(first)
    play(second)


def test_a_fresh_seed_is_stored(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked()
        first = await s.last(session_id)
        assert how(s, session_id, first).facts["seed"].endswith(" (drawn)")
        await s.workbench.answers.regenerate(session_id, first.node_id)
        other = await s.last(session_id)
        assert how(s, session_id, other).facts["seed"] != how(s, session_id, first).facts["seed"]
        await s.workbench.answers.regenerate_exactly(session_id, first.node_id)
        again = await s.last(session_id)
        assert how(s, session_id, again).facts["seed"] == how(s, session_id, first).facts["seed"]
        assert_same_run(again.run, first.run)

    play(scene, options=replace(OPTIONS, seed=None))


def test_another_answer_has_a_seed_of_its_own_also_under_a_chosen_seed(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.setup.set_option(session_id, "seed", 7)
        await s.workbench.answers.send(session_id, "hello")
        first = await s.last(session_id)
        assert how(s, session_id, first).facts["seed"] == "7"
        texts = {tuple(first.run.ids.tolist())}
        for _ in range(2):
            await s.workbench.answers.regenerate(session_id, first.node_id)
            other = await s.last(session_id)
            texts.add(tuple(other.run.ids.tolist()))
            seed, drawn = how(s, session_id, other).facts["seed"].split()
            assert (seed != "7", drawn) == (True, "(drawn)")
        assert len(texts) == 3
        # regenerating exactly uses the stored seed; the next answer uses the chosen one
        await s.workbench.answers.regenerate_exactly(session_id, other.node_id)
        assert_same_run((await s.last(session_id)).run, other.run)
        await s.workbench.answers.send(session_id, "and?")
        assert how(s, session_id, await s.last(session_id)).facts["seed"] == "7"

    play(scene, options=replace(OPTIONS, sampling=SamplingOptions(temperature=1.5)))


# ---- exactly once more ------------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sampling", WAYS, ids=str)
@pytest.mark.parametrize("reopened", [False, True])
def test_regenerating_exactly_gives_the_same_answer(play: Play, sampling: SamplingOptions, reopened: bool) -> None:
    async def first(s: Scene) -> None:
        session_id = await s.asked()
        if not reopened:
            await again(s, session_id)

    async def again(s: Scene, session_id: int) -> None:
        old = await s.last(session_id)
        assert old.can_repeat
        await s.workbench.answers.regenerate_exactly(session_id, old.node_id)
        new = await s.last(session_id)
        assert new.node_id != old.node_id
        assert new.variants == (old.node_id, new.node_id)
        assert_same_run(new.run, old.run)
        assert new.note == " · ".join(note for note in ("the same, token for token", old.note) if note)
        assert how(s, session_id, new).facts["repeats"] == "the same, token for token"
        assert new.run.stages is not None

    async def second(s: Scene) -> None:
        # given settings other than those of the answer
        session_id = (await s.workbench.sessions.list())[0].session_id
        await again(s, session_id)
        assert (await s.last(session_id)).note.startswith("the same, token for token")

    play(first, options=replace(OPTIONS, sampling=sampling, seed=None))
    if reopened:
        play(second, options=replace(OPTIONS, sampling=SamplingOptions(temperature=0.1), seed=77, max_tokens=3))


def test_regenerating_exactly_names_the_first_token_that_differs(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked()
        old = await s.last(session_id)
        read = Repeat.read

        def other(node: Any, run: TokenRun) -> Repeat:  # an original with another fifth token
            repeat = read(node, run)
            ids = repeat.ids.copy()
            ids[4] += 1
            return replace_struct(repeat, ids=ids)

        monkeypatch.setattr(Repeat, "read", other)
        await s.workbench.answers.regenerate_exactly(session_id, old.node_id)
        assert (await s.last(session_id)).note.startswith("differs from the original from token 5 on")

    async def later(s: Scene) -> None:
        turn = await s.last((await s.workbench.sessions.list())[0].session_id)
        assert turn.note.startswith("differs from the original from token 5 on")

    play(scene)
    play(later)


def test_a_branch_and_a_continuation_are_repeated_from_their_starts(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked()
        old = await s.last(session_id)
        at = own_tokens(old)[3]
        await s.workbench.answers.branch(session_id, old.node_id, at, alternative(old, at))
        branch = await s.last(session_id)
        await s.workbench.answers.regenerate_exactly(session_id, branch.node_id)
        again = await s.last(session_id)
        assert again.node_id != branch.node_id
        assert_same_run(again.run, branch.run)
        await s.workbench.answers.continue_turn(session_id, again.node_id)
        longer = await s.last(session_id)
        await s.workbench.answers.regenerate_exactly(session_id, longer.node_id)
        assert_same_run((await s.last(session_id)).run, longer.run)

    play(scene)


def test_one_of_several_continuations_is_repeated_by_itself(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked()
        old = await s.last(session_id)
        await s.workbench.continuations.continue_many(session_id, old.node_id, own_tokens(old)[3], 3)
        columns = [event.view for event in s.events if isinstance(event, ColumnsChanged) and event.view is not None][-1].columns
        await s.workbench.branches.select(session_id, columns[2].node_id)
        chosen = await s.last(session_id)
        assert chosen.can_repeat
        await s.workbench.answers.regenerate_exactly(session_id, chosen.node_id)
        again = await s.last(session_id)
        assert again.node_id != chosen.node_id
        assert_same_run(again.run, chosen.run)
        assert again.note.startswith("the same, token for token")

    play(scene, options=replace(OPTIONS, seed=None))


def test_a_stopped_answer_is_repeated_up_to_its_end(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.stopped_after(5)
        s.engine.holds_after = None
        stopped = await s.last(session_id)
        await s.workbench.answers.regenerate_exactly(session_id, stopped.node_id)
        again = await s.last(session_id)
        assert again.run.ids.tolist() == stopped.run.ids.tolist()
        assert again.note.startswith("the same, token for token")
        await s.workbench.answers.regenerate_exactly(session_id, again.node_id)
        again = await s.last(session_id)
        assert again.run.ids.tolist() == stopped.run.ids.tolist()
        # and one that is stopped itself is compared up to its end
        s.engine.holds_after = 2
        sending = asyncio.create_task(s.workbench.answers.regenerate_exactly(session_id, again.node_id))
        await until(lambda: s.arrived(session_id) == 5 + 5 + 5 + 2)
        s.workbench.answers.stop(session_id)
        await sending
        assert (await s.last(session_id)).note == "the same for 2 tokens · stopped"

    play(scene, engine=Engine(holds_after=5))


def test_answers_that_cannot_be_repeated_are_refused_with_the_reason(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def first(s: Scene) -> None:
        session_id = await s.asked()
        with pytest.raises(Refusal, match="only the model's turns"):
            await s.workbench.answers.regenerate_exactly(session_id, (await s.view(session_id)).turns[-2].node_id)
        with pytest.raises(Refusal, match="not part of this session"):
            await s.workbench.answers.regenerate_exactly(session_id, 10_000)

    async def second(s: Scene) -> None:
        session_id = (await s.workbench.sessions.list())[0].session_id
        before = await s.view(session_id)
        with pytest.raises(Refusal, match="other weights or another precision"):
            await s.workbench.answers.regenerate_exactly(session_id, before.turns[-1].node_id)
        assert (await s.view(session_id)).turns[-1].variants == before.turns[-1].variants

    async def third(s: Scene) -> None:
        # given an answer from before provenance was stored
        monkeypatch.setattr("app.workbench.answers.resolve_options.made_with", lambda *_, **__: {})
        session_id = await s.asked()
        turn = await s.last(session_id)
        assert s.workbench.answers.how_made(session_id, turn.node_id) is None
        assert not turn.can_repeat
        with pytest.raises(Refusal, match="were not stored"):
            await s.workbench.answers.regenerate_exactly(session_id, turn.node_id)

    play(first)
    play(second, engine=Engine(source=(Behaviour(recurrent=True), None)))
    play(third)


def test_nothing_is_added_if_no_model_can_be_loaded(play: Play) -> None:
    async def first(s: Scene) -> None:
        await s.asked()

    async def second(s: Scene) -> None:
        session_id = (await s.workbench.sessions.list())[0].session_id
        turn = await s.last(session_id)
        with pytest.raises(Refusal, match="no such folder"):
            await s.workbench.answers.regenerate_exactly(session_id, turn.node_id)
        assert (await s.last(session_id)).variants == turn.variants
        await s.workbench.answers.regenerate_exactly(session_id, turn.node_id)
        assert (await s.last(session_id)).variants != turn.variants

    play(first)
    play(second, engine=Engine(refuses=[ModelLoadError("no such folder: x")]))
