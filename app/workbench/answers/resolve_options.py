"""How an answer is made, down to the last option: what the call, the session, its preset and the model say, in that order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from msgspec import Struct

from app.workbench.answers.answer import Answer
from app.workbench.answers.provenance import MADE, beams_of, made_with, options_of, plain_options, stack_made_with
from app.workbench.answers.provenance_text import refusal, stack_words, words
from app.workbench.setup.adapters import Speaker
from app.workbench.setup.setups import Asked
from app.workbench.setup.values import guessed_by, without_lacking
from app.workbench.tree.tree import Tree
from runtime import GenerationOptions, InvalidRequestError, ResolvedOptions, SamplingOptions, fresh_seed
from storage import NodeRow
from ui import translate


def settled(answer: Answer, asked: Asked, speaker: Speaker, call: Mapping[str, Any]) -> GenerationOptions:
    """The options of an answer, which are stored with it (`Answer.made_with`).

    Args:
        answer: It gets them; its options are those of its preset so far (see `seeded`), or those that it repeats.
        asked: What its session asked for when it began.
        speaker: The model that answers.
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
    guessed = guessed_by(asked.session, speaker.model)
    layer = guessed if speaker.adapters is None else {**guessed, "adapters": speaker.adapters}
    said = call if answer.seed is None else {**call, "seed": answer.seed}
    preset = without_lacking(answer.options, speaker.model)
    resolved = speaker.model.resolve_options(said, session=layer, preset=preset)
    chosen = answer.seed is None and [asked.preset.seed, asked.session.get("seed"), call.get("seed")] != [None] * 3
    if answer.continues is not None:
        lacks = speaker.model.lacks
        resolved, answer.changed, chosen = answer.continues.under(resolved, asked, lacks, seed_was_chosen=chosen)
    answer.made_with = made_with(resolved, speaker, asked, seed_was_chosen=chosen)
    answer.options = resolved.options
    return answer.options


def seeded(preset: GenerationOptions) -> GenerationOptions:
    """The preset, with a fresh seed where none was chosen, and with the stages of each draw."""
    return replace(preset, seed=fresh_seed() if preset.seed is None else preset.seed, stages=True)


_PLAIN: Final = ("stop", "seed", "branch")  # not max_tokens, which holds for each part
_BY_HAND: Final = frozenset({"call", "session"})
_OF_A_MODEL: Final = frozenset({"model", "format"})


class Continued(Struct, frozen=True):
    """What is stored of an answer that another one continues."""

    made: Mapping[str, Any]  # how it was made; see `making.made_with`
    options: GenerationOptions  # those it was made with
    again: bool  # whether something goes on from there already, with the same draws

    @classmethod
    def read(cls, tree: Tree, node: NodeRow) -> Continued | None:
        """Of a node; None where it was not stored, nothing was drawn, or this version cannot read it."""
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
        """How it goes on: options, what of them was changed since in words, and whether the seed was chosen.

        What the session (or the command) says now and did not say then holds, and so does another preset that was chosen for
        the session; what a preset itself says by now does not. What belongs to a model is that of the model which goes on,
        and settings that it lacks are left out, as they are of a preset.

        Args:
            now: What an answer that begins now is made with.
            asked: What its session asks for.
            lacks: Settings that the model does not have (`LanguageModel.lacks`).
            seed_was_chosen: Whether the seed of `now` was chosen.
        """
        then = self._sources()
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
        except InvalidRequestError:  # it contradicts what was set since
            options, sources = now.options, dict(now.sources)
        if self.again and (options.seed, options.branch) == (self.options.seed, self.options.branch):
            options, sources["seed"] = replace(options, seed=fresh_seed(), branch=0), "default"
        changed += self._others(now.options, asked)
        return ResolvedOptions(options, sources), changed, sources.get("seed", "default") != "default"

    def _sources(self) -> dict[str, str]:
        told = self.made.get("sources")
        listed = told.items() if isinstance(told, Mapping) else ()
        return {str(name): str(source) for source, names in listed for name in names}

    def _others(self, now: GenerationOptions, asked: Asked) -> list[str]:
        """What else is another one than then; of these what is set now always holds."""
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
