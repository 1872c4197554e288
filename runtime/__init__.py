"""The language model as an async library: the only names other packages may use.

A name's module is imported at the first access to the name, so that importing an error does not import the engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from runtime.errors import (
    AdapterError,
    BackendUnavailableError,
    BlockFileError,
    ContextOverflowError,
    DownloadError,
    EngineDiedError,
    ForkedError,
    FullVocabUnavailableError,
    GrammarError,
    InvalidRequestError,
    KeychainError,
    ManifestMismatchError,
    MemoryBudgetError,
    ModelLoadError,
    ModelMissingError,
    NonFiniteLogitsError,
    OptionError,
    RemoteError,
    RuntimeFault,
    SessionBusyError,
    SessionClosedError,
    SessionFatalError,
    SnapshotFormatError,
    SnapshotMismatchError,
    ToolCallError,
    UnknownBackendError,
    UnsupportedFeatureError,
)
from runtime.version import __version__

if TYPE_CHECKING:
    from runtime.adapters.convert import convert_adapter
    from runtime.adapters.folder import ShelvedAdapter, import_adapter, is_adapter_folder, list_shelf_adapters
    from runtime.aio import run_sync
    from runtime.api.checks import check_fits
    from runtime.api.comparison import ComparedSide, ModelComparison, OnComparison, compare_models
    from runtime.api.genlm import load_model_by_name
    from runtime.api.language_model import LanguageModel
    from runtime.api.load import check_model, load
    from runtime.backends.registry import (
        available_backends,
        brings_text,
        check_backend,
        default_backend,
        register_backend,
        unregister_backend,
    )
    from runtime.beams import BeamOptions, BeamStep, Hypothesis
    from runtime.branches import Branches
    from runtime.grammar.source import Grammar
    from runtime.hub.child_protocol import DownloadPlan, DownloadProgress, HubFile, HubModel, OnDownload
    from runtime.hub.client import fetch_adapter, fetch_any, fetch_model, plan_download, search_models, token_owner
    from runtime.hub.credentials import forget_token, hub_address, is_token_kept, keep_token, token_in_environment
    from runtime.hub.partial_downloads import Unfinished, discard_download, unfinished_downloads
    from runtime.info import (
        AdapterInfo,
        BlocksSaved,
        CacheReport,
        EdgeReport,
        Latency,
        Message,
        Metrics,
        ModelInfo,
        OnProgress,
        Pinned,
        PrefixMatch,
        PromptProgress,
        RequestTimings,
    )
    from runtime.kv.chain import block_keys
    from runtime.kv.store import BlockStore
    from runtime.kv.trie import Trie, Weight
    from runtime.lens import LensCost, LensRun
    from runtime.loading.measurements import Perplexities, measured_perplexities, measured_threads
    from runtime.loading.memory_estimate import Fit, estimate_fit, weight_forms
    from runtime.loading.paths import models_dir
    from runtime.loading.progress import LoadProgress, Progress
    from runtime.numerics.pooling import POOLINGS, Pooling
    from runtime.numerics.stage_table import Stage, StageTable
    from runtime.options.aliases import OPTION_NAMES
    from runtime.options.generation import (
        SAMPLER_STAGES,
        AnswerEnds,
        GenerationOptions,
        ResolvedOptions,
        SamplingOptions,
        resolve_options,
    )
    from runtime.options.load import BlockOptions, LoadOptions
    from runtime.options.priority import Priority
    from runtime.options.speculation import SpeculativeOptions
    from runtime.records import Completion, Finish, Origin, Scores, TokenRecord, TokenRecords, TokenRun, TopLogprobs
    from runtime.remote.connect import add_connection, connect, connect_async
    from runtime.remote.saved import (
        Connection,
        check_connection_name,
        connections,
        find_connection,
        forget_connection,
        keep_connection,
        key_for,
        server_address,
    )
    from runtime.sampling.chain import Sampler, fresh_seed, make_sampler
    from runtime.sampling.history import History
    from runtime.sampling.replay import Replayed, replay_draw
    from runtime.sampling.step import draw_step
    from runtime.session.manifest import AdapterOf, AdapterSpan, Manifest
    from runtime.session.session import Session, SessionConfig
    from runtime.session.snapshot import Generation, Snapshot
    from runtime.session.status import (
        ContextReport,
        Divergence,
        Mark,
        PrefixStatus,
        Segment,
        SegmentKind,
        SuffixStatus,
        Truncation,
    )
    from runtime.session.token_boundary import aligned
    from runtime.shelf.catalogue import CatalogueModel, CatalogueVariant, catalogue, fitting
    from runtime.shelf.embedded import fetch_embedded
    from runtime.shelf.importing import ImportPlan, import_model, plan_import
    from runtime.shelf.model_shelf import ModelShelf, ShelfEntry, list_models
    from runtime.shelf.quantise import convert_model
    from runtime.text.formats import CHAT_FORMATS
    from runtime.text.tool_call_reader import ToolCallReader, parse_tool_calls
    from runtime.text.tool_calls import ToolCall, ToolCalls
    from runtime.text.utf8 import clean_text, texts_of
    from runtime.transport.child import EngineLimits
    from runtime.transport.pipe import spawn

_NAMES = {
    "runtime.adapters.convert": ("convert_adapter",),
    "runtime.adapters.folder": ("ShelvedAdapter", "import_adapter", "is_adapter_folder", "list_shelf_adapters"),
    "runtime.aio": ("run_sync",),
    "runtime.backends.registry": (
        "available_backends",
        "brings_text",
        "check_backend",
        "default_backend",
        "register_backend",
        "unregister_backend",
    ),
    "runtime.beams": ("BeamOptions", "BeamStep", "Hypothesis"),
    "runtime.kv.chain": ("block_keys",),
    "runtime.kv.store": ("BlockStore",),
    "runtime.branches": ("Branches",),
    "runtime.api.genlm": ("load_model_by_name",),
    "runtime.api.language_model": ("LanguageModel",),
    "runtime.api.load": ("check_model", "load"),
    "runtime.api.comparison": ("ComparedSide", "ModelComparison", "OnComparison", "compare_models"),
    "runtime.grammar.source": ("Grammar",),
    "runtime.hub.child_protocol": ("DownloadPlan", "DownloadProgress", "HubFile", "HubModel", "OnDownload"),
    "runtime.hub.client": ("fetch_adapter", "fetch_any", "fetch_model", "plan_download", "search_models", "token_owner"),
    "runtime.hub.credentials": ("forget_token", "hub_address", "is_token_kept", "keep_token", "token_in_environment"),
    "runtime.hub.partial_downloads": ("Unfinished", "discard_download", "unfinished_downloads"),
    "runtime.info": (
        "BlocksSaved",
        "Message",
        "Pinned",
        "PrefixMatch",
        "AdapterInfo",
        "CacheReport",
        "EdgeReport",
        "Latency",
        "Metrics",
        "ModelInfo",
        "OnProgress",
        "PromptProgress",
        "RequestTimings",
    ),
    "runtime.lens": ("LensCost", "LensRun"),
    "runtime.loading.measurements": ("Perplexities", "measured_perplexities", "measured_threads"),
    "runtime.loading.memory_estimate": ("Fit", "estimate_fit", "weight_forms"),
    "runtime.loading.paths": ("models_dir",),
    "runtime.loading.progress": ("LoadProgress", "Progress"),
    "runtime.numerics.pooling": ("POOLINGS", "Pooling"),
    "runtime.numerics.stage_table": ("Stage", "StageTable"),
    "runtime.options.aliases": ("OPTION_NAMES",),
    "runtime.options.generation": (
        "AnswerEnds",
        "GenerationOptions",
        "ResolvedOptions",
        "SAMPLER_STAGES",
        "SamplingOptions",
        "resolve_options",
    ),
    "runtime.options.load": ("BlockOptions", "LoadOptions"),
    "runtime.options.priority": ("Priority",),
    "runtime.records": ("Completion", "Finish", "Origin", "Scores", "TokenRecord", "TokenRecords", "TokenRun", "TopLogprobs"),
    "runtime.remote.connect": ("add_connection", "connect", "connect_async"),
    "runtime.remote.saved": (
        "Connection",
        "check_connection_name",
        "connections",
        "find_connection",
        "forget_connection",
        "keep_connection",
        "key_for",
        "server_address",
    ),
    "runtime.sampling.chain": ("Sampler", "fresh_seed", "make_sampler"),
    "runtime.sampling.history": ("History",),
    "runtime.sampling.replay": ("Replayed", "replay_draw"),
    "runtime.sampling.step": ("draw_step",),
    "runtime.session.manifest": ("AdapterOf", "AdapterSpan", "Manifest"),
    "runtime.session.session": ("Session", "SessionConfig"),
    "runtime.session.snapshot": ("Generation", "Snapshot"),
    "runtime.session.status": (
        "ContextReport",
        "Divergence",
        "Mark",
        "PrefixStatus",
        "Segment",
        "SegmentKind",
        "SuffixStatus",
        "Truncation",
    ),
    "runtime.session.token_boundary": ("aligned",),
    "runtime.shelf.catalogue": ("CatalogueModel", "CatalogueVariant", "catalogue", "fitting"),
    "runtime.shelf.embedded": ("fetch_embedded",),
    "runtime.shelf.importing": ("ImportPlan", "import_model", "plan_import"),
    "runtime.shelf.model_shelf": ("ModelShelf", "ShelfEntry", "list_models"),
    "runtime.shelf.quantise": ("convert_model",),
    "runtime.options.speculation": ("SpeculativeOptions",),
    "runtime.text.formats": ("CHAT_FORMATS",),
    "runtime.api.checks": ("check_fits",),
    "runtime.transport.child": ("EngineLimits",),
    "runtime.transport.pipe": ("spawn",),
    "runtime.text.utf8": ("clean_text", "texts_of"),
    "runtime.text.tool_calls": ("ToolCall", "ToolCalls"),
    "runtime.text.tool_call_reader": ("ToolCallReader", "parse_tool_calls"),
    "runtime.kv.trie": ("Trie", "Weight"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = ["__version__", *(name for name in globals() if name.endswith(("Error", "Fault"))), *_HOMES]


if not TYPE_CHECKING:  # hidden from the type checker, which would otherwise accept any name

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'runtime' has no attribute {name!r}")
        found = getattr(import_module(_HOMES[name]), name)
        globals()[name] = found  # later accesses do not call this function
        return found


def __dir__() -> list[str]:
    return sorted(__all__)
