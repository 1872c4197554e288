"""Resolves the options of an answer: call, session, preset and model, in this order of precedence."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from msgspec import Struct

from app.workbench.answers.answer import Answer
from app.workbench.answers.provenance import MADE, beams_of, made_with, options_of, plain_options, stack_made_with
from app.workbench.answers.provenance_text import refusal, stack_words, words
from app.workbench.setup.session_adapters import AdaptedModel
from app.workbench.setup.setups import Asked
from app.workbench.setup.values import guessed_by, stored_sources, without_lacking
from app.workbench.tree.tree import Tree
from runtime import GenerationOptions, InvalidRequestError, ResolvedOptions, SamplingOptions, fresh_seed
from storage import NodeRow
from ui import translate


def resolve_answer(answer: Answer, asked: Asked, adapted: AdaptedModel) -> GenerationOptions:
    """Resolves the options of an answer, and sets its `options`, `made_with` and `changed`.

    Args:
        answer: Its options so far are its preset's (see `with_seed`), or those of the answer that it repeats.
        asked: The session's options and adapters when the answer began.
        adapted: The model that answers.

    Raises:
        InvalidRequestError: It repeats another answer, which this model cannot.
    """
    if answer.repeats is not None:
        why = refusal(answer.session.tree.nodes[answer.repeats.of], adapted)  # the model may have changed meanwhile
        if why:
            raise InvalidRequestError(why)
        answer.made_with = {**answer.repeats.made, "options": plain_options(answer.options)}
        return answer.options
    guessed = guessed_by(asked.session, adapted.model)
    layer = guessed if adapted.adapters is None else {**guessed, "adapters": adapted.adapters}
    said = asked.call if answer.seed is None else {**asked.call, "seed": answer.seed}
    preset = without_lacking(answer.options, adapted.model)
    resolved = adapted.model.resolve_options(said, session=layer, preset=preset)
    chosen = answer.seed is None and [asked.preset.seed, asked.session.get("seed"), asked.call.get("seed")] != [None] * 3
    if answer.continues is not None:
        lacks = adapted.model.lacks
        resolved, answer.changed, chosen = answer.continues.under(resolved, asked, lacks, seed_was_chosen=chosen)
    answer.made_with = made_with(resolved, adapted, asked, seed_was_chosen=chosen)
    answer.options = resolved.options
    return answer.options


def with_seed(preset: GenerationOptions) -> GenerationOptions:
    """The preset, with a fresh seed if it has none, and with the stages of each draw recorded."""
    return replace(preset, seed=fresh_seed() if preset.seed is None else preset.seed, stages=True)


_PLAIN: Final = ("stop", "seed", "branch")  # without max_tokens, which counts anew in each continuation
_BY_HAND: Final = frozenset({"call", "session"})
_OF_A_MODEL: Final = frozenset({"model", "format"})


class Continued(Struct, frozen=True):
    """The provenance of an answer to be continued."""

    made: Mapping[str, Any]  # see `provenance.made_with`
    options: GenerationOptions
    again: bool  # whether it was continued before: the same draws would repeat that continuation

    @classmethod
    def read(cls, tree: Tree, node: NodeRow) -> Continued | None:
        """The provenance of a node; None if none is stored, nothing was drawn, or this version cannot read it."""
        made = node.stats.get(MADE)
        if not isinstance(made, Mapping) or beams_of(node):
            return None
        try:
            options = options_of(made)
        except (KeyError, TypeError, ValueError):  # InvalidRequestError is one
            return None
        on = (child for child in tree.children(node.id) if tree.leaves_at_end(child))
        return cls(made, options, any(not child.turn_start and child.stats.get("generated") for child in on))

    def under(
        self, now: ResolvedOptions, asked: Asked, lacks: Collection[str], *, seed_was_chosen: bool
    ) -> tuple[ResolvedOptions, list[str], bool]:
        """Options of the continuation, those that differ from the answer's in words, and whether the seed was chosen.

        The answer's options are kept, except those that the session or the call has set or unset since, those of another
        preset chosen since, and those that come from the model or its format. An edit of the preset itself changes nothing.
        Settings that the model lacks are left out, as they are of a preset.

        Args:
            now: The options of an answer that begins now.
            asked: The session's options and adapters.
            lacks: Settings that the model does not have (`LanguageModel.lacks`).
            seed_was_chosen: Whether the seed of `now` was chosen.
        """
        then = stored_sources(self.made)
        preset_changed = self.made.get("preset", asked.preset_name) != asked.preset_name
        by_hand = _BY_HAND | {"preset"} if preset_changed else _BY_HAND
        new, sources = _flat(now.options), dict(now.sources)
        if not seed_was_chosen:
            sources["seed"] = "default"
        taken: dict[str, Any] = {}
        changed: list[str] = []
        for name, value in _flat(self.options).items():
            both = {*then.get(name, "default").split(" and "), *sources.get(name, "default").split(" and ")}
            if new[name] == value:
                continue
            if both & by_hand or name.removeprefix("sampling.") in lacks:
                was = translate("Workbench", "{0} {1} (was {2})")
                changed.append(was.format(name.removeprefix("sampling."), words(new[name]), words(value)))
            elif not both & _OF_A_MODEL:
                taken[name], sources[name] = value, then.get(name, "default")
        try:
            options = _with(now.options, taken)
        except InvalidRequestError:  # kept options contradict those set since
            options, sources = now.options, dict(now.sources)
        if self.again and (options.seed, options.branch) == (self.options.seed, self.options.branch):
            options, sources["seed"] = replace(options, seed=fresh_seed(), branch=0), "default"
        changed += self._others(now.options, asked)
        return ResolvedOptions(options, sources), changed, sources.get("seed", "default") != "default"

    def _others(self, now: GenerationOptions, asked: Asked) -> list[str]:
        """The output format and adapters, in words, if they have changed; the current ones are used."""
        found = [] if now.grammar == self.options.grammar else [translate("Workbench", "the output format")]
        stack = stack_made_with(self.made)
        if _uses(stack) != _uses(asked.adapters):
            found.append(stack_words([(choice.name, choice.scale) for choice in asked.adapters or () if choice.on]))
        return found


def _uses(stack: Any) -> list[tuple[str, float]]:
    return [(choice.folder, choice.scale) for choice in stack or () if choice.on]


def _flat(options: GenerationOptions) -> dict[str, Any]:
    sampling = {f"sampling.{name}": getattr(options.sampling, name) for name in SamplingOptions.__slots__}
    return {**{name: getattr(options, name) for name in _PLAIN}, **sampling}


def _with(options: GenerationOptions, taken: Mapping[str, Any]) -> GenerationOptions:
    prefix = "sampling."
    sampling = {name.removeprefix(prefix): value for name, value in taken.items() if name.startswith(prefix)}
    plain = {name: value for name, value in taken.items() if not name.startswith(prefix)}
    return replace(options, **plain, sampling=replace(options.sampling, **sampling)).check()
