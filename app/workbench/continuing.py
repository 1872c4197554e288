"""An answer that goes on with what it was made with: the stored options hold, but for what was set anew since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from app.workbench.made_words import stack_words, words
from app.workbench.making import MADE, beams_of, options_of, stack_made_with
from app.workbench.setup.setups import Asked
from app.workbench.tree import Tree
from runtime import GenerationOptions, InvalidRequestError, ResolvedOptions, SamplingOptions, fresh_seed
from storage import NodeRow
from ui import translate

_PLAIN: Final = ("stop", "seed", "branch")  # how long it may get says who goes on
_BY_HAND: Final = frozenset({"call", "session"})
_OF_A_MODEL: Final = frozenset({"model", "format"})


@dataclass(frozen=True, slots=True)
class Continued:
    """What is stored of an answer that another one continues.

    Attributes:
        made: How it was made; see `making.made_with`.
        options: Those it was made with.
        again: Whether something goes on from there already, with the same draws.
    """

    made: Mapping[str, Any]
    options: GenerationOptions
    again: bool

    @classmethod
    def read(cls, tree: Tree, node: NodeRow) -> Continued | None:
        """Of a node; None where nobody stored it, where nothing was drawn, or where this version cannot read it."""
        made = node.stats.get(MADE)
        if not isinstance(made, Mapping) or beams_of(node):
            return None
        try:
            options = options_of(made)
        except (KeyError, TypeError, ValueError):  # InvalidRequestError is one
            return None
        on = (child for child in tree.children(node.id) if tree.leaves_at_end(child))
        return cls(made, options, any(not child.turn_start and child.stats.get("generated") for child in on))

    def under(self, now: ResolvedOptions, asked: Asked, *, seed_was_chosen: bool) -> tuple[ResolvedOptions, list[str], bool]:
        """How it goes on: options, what of them was changed since in words, and whether somebody chose the seed.

        What the session (or the command) says now and did not say then holds, and so does another preset that was chosen for
        the session; what a preset itself says by now does not. What belongs to a model is that of the model which goes on.

        Args:
            now: What an answer that begins now is made with.
            asked: What its session asks for.
            seed_was_chosen: Whether `now` has a seed that somebody chose.
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
            who = {*then.get(name, "default").split(" and "), *sources.get(name, "default").split(" and ")}
            if new[name] == value:
                continue
            if who & by_hand:
                was = translate("Workbench", "{0} {1} (was {2})")
                changed.append(was.format(name.removeprefix("sampling."), words(new[name]), words(value)))
            elif not who & _OF_A_MODEL:
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
        return {str(name): str(who) for who, names in listed for name in names}

    def _others(self, now: GenerationOptions, asked: Asked) -> list[str]:
        """What else is another one than then; of these what is set now always holds."""
        found = [] if now.grammar == self.options.grammar else [translate("Workbench", "the form of the answer")]
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
