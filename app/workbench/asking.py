"""How an answer is made, down to the last option: what the call, the session, its preset and the model say, in that order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.workbench.answer import Answer
from app.workbench.made_words import refusal
from app.workbench.making import made_with, plain_options
from app.workbench.setup.guessing import guessed_by
from app.workbench.setup.setups import Asked
from app.workbench.speaker import Speaker
from runtime import GenerationOptions, InvalidRequestError, fresh_seed


def settled(answer: Answer, asked: Asked, speaker: Speaker, call: Mapping[str, Any]) -> GenerationOptions:
    """The options of an answer, which are stored with it (`Answer.made_with`).

    Args:
        answer: It gets them; its options are those of its preset so far (see `seeded`), or those that it repeats.
        asked: What its session asked for when it began.
        speaker: Who answers.
        call: By the names of `GenerationOptions.from_mapping`; goes before the session.

    Raises:
        InvalidRequestError: It is to be another answer again, which this model cannot.
    """
    if answer.repeats is not None:
        why = refusal(answer.session.tree.nodes[answer.repeats.of], speaker)  # another one may have come meanwhile
        if why:
            raise InvalidRequestError(why)
        answer.made_with = {**answer.repeats.made, "options": plain_options(answer.options)}
        return answer.options
    guessed = guessed_by(asked.session, speaker.model.info)
    layer = guessed if speaker.adapters is None else {**guessed, "adapters": speaker.adapters}
    said = call if answer.seed is None else {**call, "seed": answer.seed}
    resolved = speaker.model.resolve_options(said, session=layer, preset=answer.options)
    chosen = answer.seed is None and [asked.preset.seed, asked.session.get("seed"), call.get("seed")] != [None] * 3
    if answer.continues is not None:
        resolved, answer.changed, chosen = answer.continues.under(resolved, asked, seed_was_chosen=chosen)
    answer.made_with = made_with(resolved, speaker, asked, seed_was_chosen=chosen)
    answer.options = resolved.options
    return answer.options


def seeded(preset: GenerationOptions) -> GenerationOptions:
    """The preset, with a fresh seed where nobody chose one, and what each draw was made of."""
    return replace(preset, seed=fresh_seed() if preset.seed is None else preset.seed, stages=True)
