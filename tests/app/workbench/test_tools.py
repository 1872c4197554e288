"""Tools: offered with the system prompt, called by the model, answered by a person; nothing is executed."""

from __future__ import annotations

import json

import pytest

from app.workbench.prompt.prompt import parts_of
from app.workbench.setup.beginning import cards, read_tools
from runtime import InvalidRequestError
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene
from tests.runtime.text.template_texts import QWEN_TOOLS
from ui import AnswerFormat, FormatKind, Refusal, SessionChanged
from ui.core.shown import typed_text

WEATHER = json.dumps(
    [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "required": ["city"]}}}]
)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
SAYS_SO = AnswerFormat(FormatKind.LARK, f"start: {json.dumps(CALL)}")


def engine() -> Engine:
    return Engine(options={"chat_template": QWEN_TOOLS})


def seen(s: Scene) -> str:
    return bytes(token for token in s.engine.prompts[-1] if token < 256).decode()


@pytest.mark.slow
def test_a_call_is_shown_answered_by_hand_and_answered(play: Play) -> None:
    async def scene(s: Scene) -> None:
        # given a session that offers a tool, and a model that calls it
        session_id = await s.new()
        await s.workbench.setup.set_tools(session_id, WEATHER)
        await s.workbench.setup.set_format(session_id, SAYS_SO)
        await s.workbench.setup.set_option(session_id, "max_tokens", 200)
        await s.workbench.answers.send(session_id, "How is the weather?")
        assert '"weather"' in seen(s)
        asking = await s.last(session_id)
        assert [(card.name, json.loads(card.arguments), card.problem) for card in asking.calls] == [
            ("weather", {"city": "Oslo"}, "")
        ]
        # when a person types the result
        await s.workbench.setup.set_format(session_id, AnswerFormat())
        with pytest.raises(Refusal, match="result"):
            await s.workbench.answers.answer_call(session_id, asking.node_id, ["  "])
        await s.workbench.answers.answer_call(session_id, asking.node_id, ["rain, 4 °C"])
        # then it is a tool's turn after the call, which is unchanged
        assert "</tool_call>" in seen(s)
        assert seen(s).index(CALL) < seen(s).index("rain, 4 °C")
        turns = (await s.view(session_id)).turns
        assert [turn.role for turn in turns] == ["system", "user", "assistant", "tool", "assistant"]
        assert turns[2].calls == ()
        assert [card.name for card in turns[2].called] == ["weather"]  # it is still shown as a card
        with pytest.raises(Refusal, match="no open tool call"):
            await s.workbench.answers.answer_call(session_id, asking.node_id, ["again"])

    play(scene, engine=engine())


def test_tools_are_part_of_the_system_prompt_and_survive_a_restart(play: Play) -> None:
    held: list[int] = []

    async def first(s: Scene) -> None:
        session_id = await s.asked("hello")
        held.append(session_id)
        await s.workbench.setup.set_system(session_id, "Be short.")
        setup = await s.workbench.setup.set_tools(session_id, WEATHER)
        assert (setup.system, setup.tools) == ("Be short.", WEATHER)
        for source in ("{", "[1]", '[{"name": "a"}, {"name": "a"}]'):
            with pytest.raises(Refusal):
                await s.workbench.setup.set_tools(session_id, source)

    async def second(s: Scene) -> None:
        await s.view(held[0])
        setup = await s.workbench.setup.view(held[0])
        assert (setup.system, setup.tools) == ("Be short.", WEATHER)
        assert await s.workbench.setup.check_tools(WEATHER) == (["weather"], "")

    play(first, engine=engine())
    play(second, engine=engine())


def test_a_template_without_tools_is_noted_at_the_turn(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.setup.set_tools(session_id, WEATHER)
        await s.workbench.answers.send(session_id, "hello")
        assert "takes no tools" in (await s.last(session_id)).note

    play(scene)


@pytest.mark.parametrize("text", ["no open tool call", "{not a call}", ""])
def test_an_answer_without_a_call_has_no_card(text: str) -> None:
    assert cards(text, read_tools(WEATHER)) == ()
    assert cards(CALL, []) == ()


@pytest.mark.parametrize("text", ["<tool_call>{", CALL.replace("weather", "wether"), CALL.replace("city", "town")])
def test_answering_an_invalid_call_is_refused_with_the_reason(text: str) -> None:
    (card,) = cards(text, read_tools(WEATHER))
    assert card.problem


@pytest.mark.parametrize("source", ["[" * 100_000, "x" * 200_000, "3", '"a"', "[[]]"])
def test_invalid_definitions_are_refused(source: str) -> None:
    with pytest.raises(InvalidRequestError):
        read_tools(source)


CALLS = CALL + '\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.mark.sampled(1)
@pytest.mark.parametrize("results", [["rain, 4 °C", "sun\nall day"], ["same", "same"], ["</tool_response> 1", "0"]])
def test_each_of_several_calls_has_a_result_of_its_own(play: Play, results: list[str]) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.setup.set_tools(session_id, WEATHER)
        await s.workbench.setup.set_format(session_id, AnswerFormat(FormatKind.LARK, f"start: {json.dumps(CALLS)}"))
        await s.workbench.setup.set_option(session_id, "max_tokens", 300)
        await s.workbench.answers.send(session_id, "How is the weather, here and there?")
        asking = await s.last(session_id)
        assert len(asking.calls) == 2
        await s.workbench.setup.set_format(session_id, AnswerFormat())
        await s.workbench.setup.set_option(session_id, "max_tokens", 5)
        with pytest.raises(Refusal, match=r"2 calls .* 1 results"):
            await s.workbench.answers.answer_call(session_id, asking.node_id, ["both"])
        with pytest.raises(Refusal, match="write the result"):
            await s.workbench.answers.answer_call(session_id, asking.node_id, ["rain", " "])
        # when both are given
        await s.workbench.answers.answer_call(session_id, asking.node_id, results)
        # then each is a turn with its own tokens, in the form of the template
        turns = (await s.view(session_id)).turns
        assert [turn.role for turn in turns] == ["system", "user", "assistant", "tool", "tool", "assistant"]
        told = turns[3:5]
        assert [typed_text(turn.run) for turn in told] == results
        both = "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in results)
        assert both in seen(s)
        # and another question continues there, without tokenising the earlier turns again
        before = s.engine.prompts[-1]
        await s.workbench.answers.send(session_id, "And tomorrow?")
        assert s.engine.prompts[-1][: len(before)] == before

    play(scene, engine=engine())


def test_results_that_a_template_renders_differently_have_tokens_each(play: Play) -> None:
    async def scene(s: Scene) -> None:
        await s.asked("hello")
        model = s.workbench.services.supervisor.running
        assert model is not None
        ids = list(b"<<rain>> and <<noon>>")
        assert [bytes(part) for part in parts_of(model, ids, ["rain", "noon"])] == [b"<<rain", b">> and <<noon>>"]
        assert [bytes(part) for part in parts_of(model, ids, ["other", "words", "x"])] == [b"<", b"<", b"rain>> and <<noon>>"]
        assert parts_of(model, ids, ["rain"]) == [ids]

    play(scene)


def test_only_a_running_answer_with_tools_may_call(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.answers.send(session_id, "hello")
        seen_views = [event.view.turns[-1] for event in s.events if isinstance(event, SessionChanged) and event.view.turns]
        assert not any(turn.may_call for turn in seen_views)
        await s.workbench.setup.set_tools(session_id, WEATHER)
        s.events.clear()
        await s.workbench.answers.send(session_id, "How is the weather?")
        told = [event.view.turns[-1] for event in s.events if isinstance(event, SessionChanged) and event.view.turns]
        assert any(turn.may_call for turn in told)
        assert not (await s.last(session_id)).may_call

    play(scene, engine=engine())
