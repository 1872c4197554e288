"""From a conversation to ids: what stands in the tree stays, and the concatenated path is the prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.workbench.prompt.prompt import NewIds, as_run, render_header, render_turn
from runtime import LanguageModel, Origin, load
from runtime.backends.byte_text import CHATML

END = 257
CONTENT = st.text(min_size=1, max_size=20) | st.sampled_from(
    ["<|im_end|>", "end", ">", "user", "assistant", "<|im_start|>user\nhi<|im_end|>", "\n", " a ", "\u0000", "é😀"]
)
STRIPS_HISTORY = (
    "{% for message in messages %}{% if loop.last or message['role'] == 'user' %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% else %}{{ '<|im_start|>assistant\\n(left out)<|im_end|>\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TRIMS = CHATML.replace("message['content'] +", "(message['content'] | trim) +")
DEFAULT_SYSTEM = "{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}" + CHATML
NO_END = (
    "{% for message in messages %}{{ '[' + message['role'] + ']' + message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)


@pytest.fixture(scope="module")
def model() -> Iterator[LanguageModel]:
    with load("x", backend="fake") as loaded:
        yield loaded


Speak = Callable[[str], LanguageModel]


@pytest.fixture
def speak() -> Iterator[Speak]:
    """The same model with another template."""
    with ExitStack() as stack:

        def change(template: str) -> LanguageModel:
            return stack.enter_context(load("x", backend="fake", chat_template=template))

        yield change


def turn(model: LanguageModel, held: list[int], *contents: str) -> NewIds:
    messages = [{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)]
    return asyncio.run(render_turn(model, held, messages))


def whole(model: LanguageModel, *contents: str) -> list[int]:
    messages = [{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)]
    return model.render_chat(messages)


def text(model: LanguageModel, ids: list[int]) -> str:
    return model.detokenize(ids)


def test_the_closing_end_belongs_to_the_turn_and_the_newline_to_the_next_header(model: LanguageModel) -> None:
    ids = turn(model, [], "hi")
    assert ids.system == []
    assert text(model, ids.user) == "<|im_start|>user\nhi<|im_end|>"
    assert text(model, ids.header) == "\n<|im_start|>assistant\n"


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=CONTENT, answer=CONTENT, second=CONTENT, third=CONTENT)
def test_concatenated_turns_are_the_whole_conversation(
    model: LanguageModel, first: str, answer: str, second: str, third: str
) -> None:
    one = turn(model, [], first)
    held = [*one.user, *one.header, *model.tokenize(answer), END]
    two = turn(model, held, first, answer, second)
    path = [*held, *two.user, *two.header]
    assert path == whole(model, first, answer, second)
    held = [*path, *model.tokenize(answer)]  # stopped: no end of its own
    three = turn(model, held, first, answer, second, answer, third)
    assert [*held, *three.user, *three.header] == whole(model, first, answer, second, answer, third)
    assert three.user[0] == END


def test_the_templates_own_system_prompt_is_the_root(speak: Speak) -> None:
    model = speak(DEFAULT_SYSTEM)
    ids = turn(model, [], "hi")
    assert text(model, ids.system) == "<|im_start|>system\nBe kind.<|im_end|>"
    assert text(model, ids.user) == "\n<|im_start|>user\nhi<|im_end|>"
    assert [*ids.system, *ids.user, *ids.header] == whole(model, "hi")


@pytest.mark.parametrize("stopped", [False, True])
def test_a_template_that_leaves_history_out_gets_what_was_said_verbatim(speak: Speak, stopped: bool) -> None:
    model = speak(STRIPS_HISTORY)
    one = turn(model, [], "hi")
    held = [*one.user, *one.header, *model.tokenize("my answer"), *([] if stopped else [END])]
    two = turn(model, held, "hi", "my answer", "and?")
    said = text(model, [*held, *two.user, *two.header])
    assert said.startswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nmy answer")
    assert said.endswith("<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n")
    assert "left out" not in said
    assert two.system == []


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("cut", [b"caf\xc3", b" spaces round "])
def test_an_answer_the_template_would_spell_otherwise_is_closed_and_kept(speak: Speak, stopped: bool, cut: bytes) -> None:
    model = speak(TRIMS)
    one = turn(model, [], "hi")
    held = [*one.user, *one.header, *cut, *([] if stopped else [END])]
    two = turn(model, held, "hi", cut.decode(errors="replace"), "and?")
    said = b"".join(model.decode_token(i) for i in [*held, *two.user, *two.header])
    assert said == (
        b"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        + cut
        + b"<|im_end|>\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_without_an_end_of_turn_has_no_end_to_move(speak: Speak) -> None:
    model = speak(NO_END)
    one = turn(model, [], "hi")
    assert (text(model, one.user), text(model, one.header)) == ("[user]hi", "[assistant]")
    held = [*one.user, *one.header, *model.tokenize("yes"), END]
    two = turn(model, held, "hi", "yes", "and?")
    assert text(model, [*two.user, *two.header]).endswith("[user]and?[assistant]")


def test_the_header_alone_is_the_one_that_follows_the_question(model: LanguageModel) -> None:
    header = asyncio.run(render_header(model, [{"role": "user", "content": "hi"}]))
    assert header == turn(model, [], "hi").header


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=CONTENT)
def test_typed_tokens_are_those_that_spell_what_was_typed(model: LanguageModel, content: str) -> None:
    ids = turn(model, [], content).user
    run = as_run(model, ids, content)
    typed = b"".join(b for b, origin in zip(run.token_bytes, run.origin.tolist(), strict=True) if origin == Origin.TYPED)
    assert typed == content.encode()
    assert run.ids.tolist() == ids
    assert (run.rank == 0).all()


def test_content_the_template_trims_is_found_without_its_spaces(speak: Speak) -> None:
    model = speak(TRIMS)
    run = as_run(model, turn(model, [], "  hi ").user, "  hi ")
    assert "".join(t for t, o in zip(run.texts, run.origin.tolist(), strict=True) if o == Origin.TYPED) == "hi"


def test_a_header_has_no_typed_tokens(model: LanguageModel) -> None:
    assert set(as_run(model, turn(model, [], "hi").header, "").origin.tolist()) == {Origin.TEMPLATE}
