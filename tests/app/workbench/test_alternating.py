"""Templates that refuse two questions in a row: a failed answer must not end the conversation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runtime import EngineDiedError
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene, own_tokens, rows
from ui import TurnStatus

STRICT = (
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
EMPTY_ANSWER = "\n<|im_start|>assistant\n<|im_end|>\n"


def strict(template: str = STRICT, **options: Any) -> Engine:
    return Engine(options={"chat_template": template, **options})


async def fail(s: Scene, session_id: int, how: str) -> None:
    """Asks "one", which is not answered."""
    if how == "killed while loading":
        s.engine.refuses = [EngineDiedError("the engine process has ended: signal 9 (SIGKILL)")]
    elif how == "stopped while loading":
        s.engine.loading = asyncio.Event()
        s.engine.on_look = lambda what: s.workbench.answers.stop(session_id) if what == "start" else None
    elif how == "stopped while reading":
        s.engine.on_look = lambda what: s.workbench.answers.stop(session_id) if what == "score" else None
    await s.workbench.answers.send(session_id, "one")
    s.engine.on_look = lambda _what: None
    if s.engine.loading is not None:
        s.engine.loading.set()
    failed = await s.last(session_id)
    assert (failed.status, own_tokens(failed)) == (TurnStatus.PARTIAL, [])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed while loading", "stopped while loading", "stopped while reading"])
def test_messages_after_a_failed_answer_are_answered(play: Play, how: str) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await fail(s, session_id, how)
        for count, text in enumerate(("two", "three"), 2):
            await s.workbench.answers.send(session_id, text)
            view = await s.view(session_id)
            assert view.turns[-1].note == "reached the length limit"
            assert len(own_tokens(view.turns[-1])) == 12
            assert sum(turn.role == "user" for turn in view.turns) == count
            # the model's input is the text of the tree and the template's text for an empty answer
            path = await s.path_ids(session_id)
            assert path[:-12] == s.engine.prompts[-1]
        said = b"".join(b for turn in view.turns[:3] for b in turn.run.token_bytes).decode()
        assert said == f"<|im_start|>user\none<|im_end|>{EMPTY_ANSWER}<|im_start|>user\ntwo<|im_end|>"
        assert rows(s.path, "SELECT text FROM nodes WHERE role = 'user'") == [("one",), ("two",), ("three",)]

    play(scene, engine=strict())


def test_a_message_after_a_too_long_one_is_answered(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked("hi")
        await s.workbench.answers.send(session_id, "x" * 200)
        assert "do not fit" in (await s.last(session_id)).note
        await s.workbench.answers.send(session_id, "two")
        view = await s.view(session_id)
        assert own_tokens(view.turns[-1])
        assert [turn.role for turn in view.turns] == ["system", "user", "assistant", "user", "assistant"]

    play(scene, engine=strict(context_length=160))


def test_an_answer_to_the_second_of_two_questions_is_regenerated(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await fail(s, session_id, "stopped while reading")
        await fail(s, session_id, "stopped while reading")  # the header of this one is not kept
        failed = await s.last(session_id)
        await s.workbench.answers.regenerate(session_id, failed.node_id)
        assert len(own_tokens(await s.last(session_id))) == 12

    play(scene, engine=strict())


def test_a_template_that_takes_no_empty_answer_either_gets_the_last_message(play: Play) -> None:
    picky = STRICT.replace(
        "{% endif %}", "{% endif %}{% if not message['content'] %}{{ raise_exception('empty') }}{% endif %}", 1
    )

    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await fail(s, session_id, "killed while loading")
        await s.workbench.answers.send(session_id, "two")
        view = await s.view(session_id)
        assert len(own_tokens(view.turns[-1])) == 12
        said = b"".join(b for turn in view.turns[:3] for b in turn.run.token_bytes).decode()
        assert said == "<|im_start|>user\none<|im_end|><|im_start|>user\ntwo<|im_end|>"

    play(scene, engine=strict(picky))
