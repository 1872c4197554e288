"""Members that say which options hold."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from runtime.options.generation import GenerationOptions
from runtime.options.resolution import AnswerEnds, Layer, ResolvedOptions, resolve_options


class ResolvingMembers(Protocol):
    """`own_options`, `own_ends` and `resolve_options`; see `LanguageModel`."""

    @property
    @abstractmethod
    def own_options(self) -> GenerationOptions:
        """What the model's own generation_config.json asks for; the sampler's settings only where it wants to be sampled."""

    @property
    @abstractmethod
    def own_ends(self) -> AnswerEnds:
        """What ends its answers where a request says nothing of it: its eos, and what ends a turn of the chat format."""

    def resolve_options(self, call: Layer = None, *, session: Layer = None, preset: Layer = None) -> ResolvedOptions:
        """The options that would hold for a call, and who decided each: call > session > preset > the model > default.

        What ends an answer by itself is among them: the chat format's stops and the eos. Computes nothing and never
        blocks. `generate` resolves what it is given in the same way, as the call.

        Raises:
            InvalidRequestError: An unknown name, a value out of range, settings that contradict each other.
        """
        return resolve_options(call, session=session, preset=preset, model=self.own_options, ends=self.own_ends)
