"""From a Load message to a model object, by dotted names."""

from __future__ import annotations

import importlib
from typing import Any

from runtime.backends.registry import register_backend
from runtime.errors import InvalidRequestError
from runtime.language_model import LanguageModel
from runtime.wire.arrays import pack_pieces
from runtime.wire.messages import Load, Loaded


def resolve(dotted: str) -> Any:  # whatever the name stands for
    """The object that "package.module:name" stands for.

    Raises:
        InvalidRequestError: It is spelt differently, or does not exist.
    """
    module, colon, name = dotted.partition(":")
    if not (module and colon and name):
        raise InvalidRequestError(f"{dotted!r} does not name an object; write 'package.module:name'")
    try:
        return getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as missing:
        raise InvalidRequestError(f"{dotted!r} cannot be found in the engine process: {missing}") from missing


def make_model(request: Load) -> LanguageModel:
    """Loads the model (seconds to minutes; runs on a worker thread)."""
    for name, dotted in request.backends.items():
        register_backend(name, dotted)
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in request.options.items()}
    model: LanguageModel = resolve(request.loader)(request.source, request.backend, **options)
    return model


def describe(model: LanguageModel) -> Loaded:
    """What the other side keeps, so that it need not ask again."""
    return Loaded(
        info=model.info,
        metrics=model.metrics(),
        cache=model.cache_report(),
        eos_token_ids=tuple(model.eos_token_ids),
        chat_template=model.chat_template,
        byte_vocab=pack_pieces(model.byte_vocab),
        str_vocab=pack_pieces([text.encode("utf-8", "surrogatepass") for text in model.str_vocab]),
        own_options=model.own_options,
        own_ends=model.own_ends,
    )
