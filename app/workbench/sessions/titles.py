"""Titles of sessions: the first words of a message, or a title that a model writes."""

from __future__ import annotations

import re
from contextlib import aclosing
from typing import Final

from app.supervisor import Supervisor
from app.workbench.refusals import refusing
from app.workbench.tree.session import WholeSession
from runtime import GenerationOptions, SamplingOptions
from ui import Refusal, translate

TITLE_LENGTH: Final = 60  # characters
_OPENED_TOKENS: Final = 16  # last tokens of a prompt, in which a template may open the reasoning
_TURNS, _CHARACTERS = 4, 800  # turns of a conversation that a model reads, and characters of each
_OPTIONS: Final = GenerationOptions(max_tokens=400, sampling=SamplingOptions(temperature=0.0))  # a model may think first
_MARKS: Final = re.compile(r"(?m)^\s*(?:#{1,6}|>|[-*+])\s+|\*\*|`")


def title_of(text: str) -> str:
    """The first words of a message without Markdown marks, cut between words where possible."""
    words = " ".join(_MARKS.sub("", text).split()) or " ".join(text.split())
    if len(words) <= TITLE_LENGTH:
        return words
    head, _, _ = words[:TITLE_LENGTH].rpartition(" ")
    return (head if len(head) > TITLE_LENGTH // 2 else words[: TITLE_LENGTH - 1]) + "…"


async def title_from_model(supervisor: Supervisor, session: WholeSession) -> str:
    """A title for the path shown, written by the model; not stored.

    Raises:
        Refusal: There are no messages, the model cannot run, or its answer is empty.
    """
    said = [each for each in session.messages(session.tree.turns(session.tip)) if each["role"] in ("user", "assistant")]
    said = [each for each in said if each["content"].strip()][:_TURNS]
    if not said:
        raise Refusal(translate("Workbench", "there is nothing to give a title to yet"))
    shown = "\n\n".join(f"{each['role']}: {each['content'].strip()[:_CHARACTERS]}" for each in said)
    model = await supervisor.model()
    async with refusing(supervisor, model):
        if model.info.has_template:
            asked = translate(
                "Workbench", "Write a title of at most six words for this conversation. Answer with the title alone."
            )
            ids = await model.render_chat_async([{"role": "user", "content": f"{asked}\n\n{shown}"}])
        else:
            header = translate("Workbench", "A title of at most six words for this conversation:")
            ids = await model.tokenize_async(f"{shown}\n\n{header}")
        opened = model.detokenize(ids[-_OPENED_TOKENS:]).rstrip().endswith("<think>")  # by the template, so not in the answer
        text, title = "<think>" if opened else "", None
        async with aclosing(model.generate_runs(ids, _OPTIONS)) as runs:
            async for run in runs:
                text += run.answer
                if (title := _first_line(text)) is not None:
                    break
    found = title_of(_first_line(f"{text}\n") or "") if title is None else title_of(title)
    if not found:
        raise Refusal(translate("Workbench", "the model answered with no title; give the session one by hand"))
    return found


def _first_line(text: str) -> str | None:
    """The first complete line of an answer that is not empty, without quotation marks; None if there is none yet."""
    if "<think>" in text:
        text = text.partition("</think>")[2]
    lines = [line.strip().removeprefix("Title:").strip(" \"'“”„«»*") for line in text.split("\n")[:-1]]
    return next((line for line in lines if line), None)
