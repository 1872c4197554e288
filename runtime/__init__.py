"""The language model as an async library: the only names other packages may use."""

from runtime.backends.registry import available_backends, brings_text, default_backend, register_backend, unregister_backend
from runtime.client import EngineClient, EngineLimits, spawn
from runtime.errors import (
    AdapterError,
    BackendUnavailableError,
    ContextOverflowError,
    EngineDiedError,
    FullVocabUnavailableError,
    GrammarError,
    InvalidRequestError,
    ManifestMismatchError,
    MemoryBudgetError,
    ModelLoadError,
    NonFiniteLogitsError,
    RuntimeFault,
    SessionClosedError,
    SessionFatalError,
    SnapshotFormatError,
    SnapshotMismatchError,
    ToolCallError,
    UnknownBackendError,
    UnsupportedFeatureError,
)
from runtime.info import CacheReport, EdgeReport, Metrics, ModelInfo, OnProgress, PromptProgress
from runtime.language_model import LanguageModel, Message, PrefixMatch
from runtime.loading.importer import import_model
from runtime.loading.paths import models_dir
from runtime.loading.progress import Progress
from runtime.loading.shelf import ShelfEntry, list_models
from runtime.loading.smollm2 import fetch_embedded
from runtime.loading.verify import verify_model
from runtime.model import load, load_model_by_name
from runtime.options import GenerationOptions, LoadOptions, SamplingOptions
from runtime.records import Finish, Origin, Scores, TokenRecord, TokenRun
from runtime.sampling.draw import fresh_seed
from runtime.text.utf8 import clean_text, texts_of
from runtime.version import __version__

__all__ = [
    "AdapterError",
    "BackendUnavailableError",
    "CacheReport",
    "ContextOverflowError",
    "EdgeReport",
    "EngineClient",
    "EngineDiedError",
    "EngineLimits",
    "Finish",
    "FullVocabUnavailableError",
    "GenerationOptions",
    "GrammarError",
    "InvalidRequestError",
    "LanguageModel",
    "LoadOptions",
    "ManifestMismatchError",
    "MemoryBudgetError",
    "Message",
    "Metrics",
    "ModelInfo",
    "ModelLoadError",
    "NonFiniteLogitsError",
    "OnProgress",
    "Origin",
    "PrefixMatch",
    "Progress",
    "PromptProgress",
    "RuntimeFault",
    "SamplingOptions",
    "Scores",
    "SessionClosedError",
    "SessionFatalError",
    "ShelfEntry",
    "SnapshotFormatError",
    "SnapshotMismatchError",
    "TokenRecord",
    "TokenRun",
    "ToolCallError",
    "UnknownBackendError",
    "UnsupportedFeatureError",
    "__version__",
    "available_backends",
    "brings_text",
    "clean_text",
    "default_backend",
    "fetch_embedded",
    "fresh_seed",
    "import_model",
    "list_models",
    "load",
    "load_model_by_name",
    "models_dir",
    "register_backend",
    "spawn",
    "texts_of",
    "unregister_backend",
    "verify_model",
]
