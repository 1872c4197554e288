"""Conversations: drawn tokens stay as they were drawn, only what is new is tokenised, and where that ends is explained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime import GenerationOptions, Session, load
from tests.runtime.session.subjects import Subject, piped, subject

END = 257
CHAT = GenerationOptions(max_tokens=6, seed=3)
STRIPS = (
    "{% for m in messages %}{% set text = m['content'].split('</think>')[-1] if not loop.last else m['content'] %}"
    "{{ '<|im_start|>' + m['role'] + '\\n' + text + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
COUNTS = (
    "{{ '<|im_start|>system\\nday ' + (messages | length) | string + '<|im_end|>\\n' }}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def chat(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


@pytest.fixture(scope="module", params=["here", "piped"])
def case(request: pytest.FixtureRequest) -> Iterator[Subject]:
    with (subject if request.param == "here" else piped)("fake", "attention") as made:
        yield made


@pytest.fixture(scope="module")
def words() -> Iterator[Subject]:
    """A tokenizer with long tokens: the same text can be cut in many ways."""
    with subject("hf", "llama") as made:
        yield made


Speak = Callable[[str], Session]


@pytest.fixture
def speak() -> Iterator[Speak]:
    """A session on a model with another template."""
    with ExitStack() as stack:

        def change(template: str) -> Session:
            model = stack.enter_context(load("x", backend="fake", chat_template=template))
            return stack.enter_context(model.open_session())

        yield change


@pytest.mark.slow
def test_each_turn_costs_only_what_is_new(case: Subject) -> None:
    with case.model.open_session() as session:
        contents = ["Where to?"]
        for turn in range(3):
            before, held = case.computed(), len(session)
            status = session.ensure_messages_sync(chat(*contents))
            assert (status.dropped, session.explain_context().divergence) == (0, None)
            assert session.ids == case.model.render_chat(chat(*contents))
            # the last token of the answer was chosen, not pushed
            assert status.prefilled == case.computed() - before == status.resident - held + (turn > 0)
            for token in [*case.model.tokenize(f"To {turn}"), END]:
                session.logprobs_sync()
                session.advance(token)
            contents += [f"To {turn}", f"And {turn}?"]


def test_an_answer_keeps_its_tokens_however_its_text_is_cut(words: Subject) -> None:
    model = words.model
    with model.open_session() as session:
        session.ensure_messages_sync(chat("Name a statement."))
        held = session.ids
        odd = [token for char in "the statement" for token in model.tokenize(char)]  # letter by letter
        assert odd != model.tokenize("the statement")
        for token in odd:
            session.advance(token)
        session.advance(model.eos_token_ids[0])
        before = words.computed()
        status = session.ensure_messages_sync(chat("Name a statement.", "the statement", "Why?"))
        assert status.dropped == 0
        assert session.ids[: len(held) + len(odd) + 1] == [*held, *odd, model.eos_token_ids[0]]
        assert model.detokenize(session.ids) == model.detokenize(
            model.render_chat(chat("Name a statement.", "the statement", "Why?"))
        )
        assert len(session.ids) > len(model.render_chat(chat("Name a statement.", "the statement", "Why?")))
        assert words.computed() - before == status.prefilled == status.resident - len(held)
        words.check(session.logprobs_sync(), session.ids)


@pytest.mark.slow
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    first=st.text(min_size=1, max_size=12),
    answer=st.text(max_size=12) | st.sampled_from(["<|im_end|>", "\n", "é😀"]),
    then=st.text(max_size=12),
    edit=st.sampled_from(["none", "first", "answer"]),
)
def test_a_conversation_stands_as_the_template_writes_it(case: Subject, first: str, answer: str, then: str, edit: str) -> None:
    with case.model.open_session() as session:
        session.ensure_messages_sync(chat(first))
        session.prefill_sync([*case.model.tokenize(answer), END])
        held = session.ids
        contents = {"none": (first, answer), "first": (first + "x", answer), "answer": (first, answer + "x")}[edit]
        status = session.ensure_messages_sync(chat(*contents, then))
        whole = case.model.render_chat(chat(*contents, then))
        assert session.ids == whole
        kept = next((i for i, (a, b) in enumerate(zip(held, whole, strict=False)) if a != b), len(held))
        assert status.dropped == len(held) - kept
        divergence = session.explain_context().divergence
        assert (divergence is None) == (edit == "none")
        if divergence is not None:
            assert divergence.at == kept
            assert ("message 1 (user) was changed" in divergence.why) == (edit == "first")


def test_a_template_that_leaves_thinking_out_of_history_is_told(speak: Speak) -> None:
    session = speak(STRIPS)
    model = session.model
    session.ensure_messages_sync(chat("hi"))
    start = len(session)
    for token in [*model.tokenize("<think>hm</think>yes"), END]:
        session.advance(token)
    session.logprobs_sync()
    status = session.ensure_messages_sync(chat("hi", "<think>hm</think>yes", "and?"))
    assert session.ids == model.render_chat(chat("hi", "<think>hm</think>yes", "and?"))
    assert status.dropped == len("<think>hm</think>yes") + 1
    divergence = session.explain_context().divergence
    assert divergence is not None
    assert divergence.at == start
    assert (divergence.held[:7], divergence.found[:3]) == ("<think>", "yes")
    assert "thinking" in divergence.why
    # and the next turn has nothing to tell
    session.ensure_messages_sync(chat("hi", "<think>hm</think>yes", "and?"))
    assert session.explain_context().divergence is None


def test_a_template_that_writes_a_date_is_told(speak: Speak) -> None:
    session = speak(COUNTS)
    session.ensure_messages_sync(chat("hi"))
    session.prefill_sync([*session.model.tokenize("yes"), END])
    status = session.ensure_messages_sync(chat("hi", "yes", "and?"))
    divergence = session.explain_context().divergence
    assert divergence is not None
    assert divergence.at == len("<|im_start|>system\nday ") - len("<|im_start|>") + 1
    assert (divergence.held[0], divergence.found[0]) == ("1", "3")
    assert "a date" in divergence.why
    assert status.resident == len(session)
    session.ensure_messages_sync(chat("hi"))
    divergence = session.explain_context().divergence
    assert divergence is not None
    assert divergence.why == "message 2 (assistant) is not there any more"


def test_what_changed_is_named(case: Subject) -> None:
    with case.model.open_session() as session:

        def why(*contents: str) -> str:
            session.ensure_messages_sync(chat(*contents))
            divergence = session.explain_context().divergence
            return "" if divergence is None else divergence.why

        session.ensure_prefix_sync("something else")
        assert "held something else" in why("one")
        assert why("one", "two", "three") == ""
        assert why("one", "2", "three") == "message 2 (assistant) was changed"
        assert why("0", "2", "three") == "message 1 (user) was changed"
        assert why("0", "2", "three") == ""
        assert "ends there" in why("0")
        session.prefill_sync("an answer")
        assert why("0", "another", "x") == "message 2 (assistant) is not what was answered"
        session.prefill_sync([1, 2])
        assert "ends there" in why("0")


def test_an_answer_that_spells_an_end_of_turn_is_not_taken_for_one(case: Subject) -> None:
    with case.model.open_session() as session:
        session.ensure_messages_sync(chat("hi"))
        held = len(session)
        session.prefill_sync(case.model.tokenize("yes<|im_end|>"))  # plain text, and stopped there
        status = session.ensure_messages_sync(chat("hi", "yes", "and?"))
        assert session.ids == case.model.render_chat(chat("hi", "yes", "and?"))
        assert session.ids[held + 3] == END
        assert status.dropped == len("<|im_end|>")
