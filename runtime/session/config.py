"""What can be set when a session is opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from runtime.adapters.uses import AdapterUse, check_adapters
from runtime.errors import InvalidRequestError
from runtime.options import GenerationOptions
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

    top_k: int | None = 10
    limit: int | None = None
    manifest: Manifest | None = None
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
        GenerationOptions(top_k=0 if self.top_k is None else self.top_k).check()
        limit = self.limit
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= context):
            raise InvalidRequestError(f"limit must lie within 1 token and the {context:,} of the context, not {limit!r}")
        if self.manifest is not None and not isinstance(self.manifest, Manifest):
            raise InvalidRequestError(f"manifest is a Manifest (see Manifest.from_mapping), not {self.manifest!r:.60}")
        if self.options is not None:
            checked_options(self.options)
        if self.adapters is not None:
            check_adapters(self.adapters)
        return self


def checked_options(options: object) -> GenerationOptions:
    """The options of a generation.

    Raises:
        InvalidRequestError: Of another type, or with a value out of range.
    """
    if not isinstance(options, GenerationOptions):
        raise InvalidRequestError(f"options is a GenerationOptions, not {options!r:.60}")
    return options.check()
