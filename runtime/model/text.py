"""The text side of a model: tokenizer, template, and what its own files say about generating."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers

from runtime.loading.folder import ModelFolder
from runtime.options import GenerationOptions
from runtime.text.template import ChatTemplate
from runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextSide:
    """Everything between text and ids; usable from any thread."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    own: GenerationOptions  # what the model's generation_config.json asks for

    @classmethod
    def from_folder(cls, folder: ModelFolder) -> TextSide:
        """Reads what the folder says."""
        tokenizer = Tokenizer.from_folder(folder)
        return cls(tokenizer, ChatTemplate.from_folder(folder, tokenizer), own_options(folder.generation_config))

    @classmethod
    def from_transformers(cls, model: Any, tokenizer: Any) -> TextSide:
        """Takes tokenizer, template and settings from a transformers pair."""
        settings: dict[str, Any] = getattr(getattr(model, "generation_config", None), "to_dict", dict)()
        eos = settings.get("eos_token_id")
        ids = [eos] if isinstance(eos, int) else eos or []
        ours = Tokenizer.from_transformers(tokenizer, eos_token_ids=ids)
        source = getattr(tokenizer, "chat_template", None)
        template = ChatTemplate(source, ours.special_texts) if isinstance(source, str) else None
        return cls(ours, template, own_options(settings))

    @classmethod
    def from_parts(cls, backend: tokenizers.Tokenizer, template: str, eos: tuple[int, ...]) -> TextSide:
        """A tokenizer and a template without files."""
        return cls(Tokenizer(backend, eos_token_ids=eos), ChatTemplate(template), GenerationOptions())


def own_options(config: Mapping[str, Any]) -> GenerationOptions:
    """The options a model asks for: sampling only where it says that it wants to be sampled, the rest anyhow."""
    if not isinstance(config, Mapping):
        return GenerationOptions()
    names: tuple[str, ...] = ("repetition_penalty", "suppress_tokens", "max_new_tokens")
    if config.get("do_sample"):
        names += ("temperature", "top_k", "top_p", "min_p", "typical_p")
    return GenerationOptions.from_mapping({name: config[name] for name in names if config.get(name) is not None})
