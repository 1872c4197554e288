"""What can be set when a session is opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from runtime.adapters.uses import AdapterUse, check_adapters
from runtime.errors import InvalidRequestError
from runtime.options.checking import check_fields, instance, is_whole, option, shown
from runtime.options.generation import ALTERNATIVES, GenerationOptions, given
from runtime.session.manifest import Manifest


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """How a session works.

    Attributes:
        top_k: Alternatives recorded with the scores of every token that is prefilled; they stay beside the KV, so that
            `score` of the session's path computes nothing. None: no scores, the KV alone, which is faster.
        limit: Tokens that the session may hold; None: the model's context.
        manifest: What the session's ids were made with, where they come from an earlier one: another model, tokenizer,
            template or setting is refused.
        options: Of `decode`: what holds where a call says nothing (see `LanguageModel.resolve_options`).
        adapters: Loaded adapters that the session runs under whatever the model's stack becomes, in order; () is the base
            alone. None: the stack that is in force when it is opened, and a change of it is a `ManifestMismatchError`.
    """

    top_k: int | None = field(default=10, metadata={"fault": lambda value: None if value is None else ALTERNATIVES(value)})
    limit: int | None = None
    manifest: Manifest | None = option(None, instance(Manifest, "a Manifest (see Manifest.from_mapping)"))
    options: GenerationOptions | None = None
    adapters: tuple[AdapterUse, ...] | None = None

    def check(self, context: int) -> Self:
        """Itself.

        Args:
            context: Tokens that the model holds.

        Raises:
            InvalidRequestError: A value out of range or of the wrong type; the message names it.
            AdapterError: `adapters` is no sequence of names and (name, scale) pairs.
        """
        check_fields(self)
        if self.limit is not None and not is_whole(self.limit, 1, context):
            held = f"1 token and the {context:,} of the context"
            raise InvalidRequestError(f"limit must lie within {held}, not {shown(self.limit)}")
        given(self.options)
        if self.adapters is not None:
            check_adapters(self.adapters)
        return self
