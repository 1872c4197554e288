"""Tools: offered with the system prompt, called by the model, answered by a person; nothing is executed."""

from __future__ import annotations

import json

import pytest

from app.workbench.setup.tools import cards, read_tools
from runtime import InvalidRequestError
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene
from tests.runtime.text.template_texts import QWEN_TOOLS
from ui import AnswerFormat, FormatKind, Refusal

WEATHER = json.dumps(
    [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "required": ["city"]}}}]
)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
SAYS_SO = AnswerFormat(FormatKind.LARK, f"start: {json.dumps(CALL)}")


def engine() -> Engine:
    return Engine(options={"chat_template": QWEN_TOOLS})


def seen(s: Scene) -> str:
    return bytes(token for token in s.engine.prompts[-1] if token < 256).decode()


def test_a_call_is_shown_answered_by_hand_and_answered(play: Play) -> None:
    async def scene(s: Scene) -> None:
        # given a session that offers a tool, and a model that calls it
        session_id = await s.new()
        await s.workbench.set_tools(session_id, WEATHER)
        await s.workbench.set_format(session_id, SAYS_SO)
        await s.workbench.set_option(session_id, "max_tokens", 200)
        await s.workbench.send(session_id, "How is the weather?")
        assert '"weather"' in seen(s)
        asking = await s.last(session_id)
        assert [(card.name, json.loads(card.arguments), card.problem) for card in asking.calls] == [
            ("weather", {"city": "Oslo"}, "")
        ]
        # when a person types the result
        await s.workbench.set_format(session_id, AnswerFormat())
        with pytest.raises(Refusal, match="result"):
            await s.workbench.answer_call(session_id, asking.node_id, "  ")
        await s.workbench.answer_call(session_id, asking.node_id, "rain, 4 °C")
        # then it stands as a tool's turn after the call, which is there word for word
        assert "</tool_call>" in seen(s)
        assert seen(s).index(CALL) < seen(s).index("rain, 4 °C")
        turns = (await s.view(session_id)).turns
        assert [turn.role for turn in turns] == ["system", "user", "assistant", "tool", "assistant"]
        assert turns[2].calls == ()
        assert [card.name for card in turns[2].called] == ["weather"]  # it stays a card
        with pytest.raises(Refusal, match="already"):
            await s.workbench.answer_call(session_id, asking.node_id, "again")

    play(scene, engine=engine())


def test_they_stand_with_the_system_prompt_and_survive_a_restart(play: Play) -> None:
    held: list[int] = []

    async def first(s: Scene) -> None:
        session_id = await s.asked("hello")
        held.append(session_id)
        await s.workbench.set_system(session_id, "Be short.")
        setup = await s.workbench.set_tools(session_id, WEATHER)
        assert (setup.system, setup.tools) == ("Be short.", WEATHER)
        for source in ("{", "[1]", '[{"name": "a"}, {"name": "a"}]'):
            with pytest.raises(Refusal):
                await s.workbench.set_tools(session_id, source)

    async def second(s: Scene) -> None:
        await s.view(held[0])
        setup = await s.workbench.setup(held[0])
        assert (setup.system, setup.tools) == ("Be short.", WEATHER)
        assert await s.workbench.check_tools(WEATHER) == (["weather"], "")

    play(first, engine=engine())
    play(second, engine=engine())


def test_a_template_that_takes_no_tools_says_so_at_the_turn(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.set_tools(session_id, WEATHER)
        await s.workbench.send(session_id, "hello")
        assert "takes no tools" in (await s.last(session_id)).note

    play(scene)


@pytest.mark.parametrize("text", ["nothing is called", "{not a call}", ""])
def test_an_answer_without_a_call_has_no_card(text: str) -> None:
    assert cards(text, read_tools(WEATHER)) == ()
    assert cards(CALL, []) == ()


@pytest.mark.parametrize("text", ["<tool_call>{", CALL.replace("weather", "wether"), CALL.replace("city", "town")])
def test_a_call_that_cannot_be_answered_says_why(text: str) -> None:
    (card,) = cards(text, read_tools(WEATHER))
    assert card.problem


@pytest.mark.parametrize("source", ["[" * 100_000, "x" * 200_000, "3", '"a"', "[[]]"])
def test_hostile_definitions_are_refused(source: str) -> None:
    with pytest.raises(InvalidRequestError):
        read_tools(source)
