"""The text side of a model: tokenizer, template, and the options of its own files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tokenizers

from runtime.backends import facts
from runtime.engine.own_options import OwnOptions
from runtime.info import ModelInfo
from runtime.loading.model_folder import ModelFolder
from runtime.options.generation import AnswerEnds
from runtime.options.load import LoadOptions
from runtime.text.chat import ChosenFormat, choose_format
from runtime.text.template import ChatTemplate
from runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextSide:
    """Everything between text and ids; usable from any thread."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    own: OwnOptions  # options of the model's generation_config.json
    format: ChosenFormat | None = None  # None until `with_format`
    warnings: tuple[str, ...] = ()  # about the model's files

    def with_format(self, options: LoadOptions) -> TextSide:
        """A copy with the chat format that the options ask for.

        Raises:
            InvalidRequestError: The user's template cannot be read or does not compile.
        """
        chosen = choose_format(options, self.tokenizer, self.template)
        return replace(self, template=chosen.template, format=chosen)

    def within(self, vocab: int) -> TextSide:
        """A copy for a model with this size of vocabulary."""
        return replace(self, own=self.own.within(vocab))

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The ids that end an answer."""
        return self.format.eos_token_ids if self.format else self.tokenizer.eos_token_ids

    def ends(self, vocab: int) -> AnswerEnds:
        """What ends an answer of a model with this size of vocabulary."""
        known = [token for token in self.eos_token_ids if token < vocab]
        own = frozenset(self.tokenizer.eos_token_ids)
        return AnswerEnds(
            tuple(token for token in known if token in own),
            tuple(token for token in known if token not in own),
            self.format.stops if self.format else (),
        )

    def described(self, info: ModelInfo) -> ModelInfo:
        """A backend's `info` with the current format, and with warnings about the text side."""
        chosen, found = self.format, (*self.warnings, *self.own.warnings)
        if chosen is None:
            return replace(info, warnings=(*info.warnings, *found))
        fingerprint = info.model_fingerprint
        return replace(
            info,
            has_template=chosen.template is not None,
            template_digest=chosen.digest,
            model_fingerprint=facts.digest("format", fingerprint, chosen.digest) if chosen.replaces else fingerprint,
            options={**info.options, "chat_format": chosen.name},
            warnings=(*info.warnings, *chosen.warnings, *found),
        )

    @classmethod
    def from_folder(cls, folder: ModelFolder) -> TextSide:
        """Reads tokenizer, template and options of a folder."""
        tokenizer = Tokenizer.from_folder(folder)
        own = OwnOptions.read(folder.generation_config)
        return cls(tokenizer, ChatTemplate.from_folder(folder, tokenizer), own, warnings=folder.warnings)

    @classmethod
    def from_transformers(cls, model: Any, tokenizer: Any) -> TextSide:
        """Takes tokenizer, template and settings from a transformers pair."""
        settings: dict[str, Any] = getattr(getattr(model, "generation_config", None), "to_dict", dict)()
        eos = settings.get("eos_token_id")
        ids = [eos] if isinstance(eos, int) else eos or []
        ours = Tokenizer.from_transformers(tokenizer, eos_token_ids=ids)
        source = getattr(tokenizer, "chat_template", None)
        template = ChatTemplate(source, ours.special_texts) if isinstance(source, str) else None
        return cls(ours, template, OwnOptions.read(settings))

    @classmethod
    def from_parts(cls, backend: tokenizers.Tokenizer, template: str, eos: tuple[int, ...]) -> TextSide:
        """A tokenizer and a template without files."""
        return cls(Tokenizer(backend, eos_token_ids=eos), ChatTemplate(template), OwnOptions())
