"""From a Load message to a model object, by dotted names."""

from __future__ import annotations

from runtime.backends.registry import register_backend
from runtime.dotted import resolve
from runtime.language_model import LanguageModel
from runtime.loading.progress import OnLoad, progress_listener
from runtime.wire.arrays import pack_pieces
from runtime.wire.messages import Load, Loaded


def make_model(request: Load, on_progress: OnLoad | None = None) -> LanguageModel:
    """Loads the model (seconds to minutes; runs on a worker thread). `on_progress` is called on another one."""
    for name, dotted in request.backends.items():
        register_backend(name, dotted)
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in request.options.items()}
    with progress_listener(on_progress):  # a loader of somebody's own need not know of it
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
