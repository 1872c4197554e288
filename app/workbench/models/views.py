"""The runtime's models, plans and search results as the window's views."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import runtime  # its names are imported at their first use: the window opens without them
from ui import (
    QT_TRANSLATE_NOOP,
    BackendChoice,
    FitView,
    HubFind,
    LoadChoice,
    ModelPlan,
    Offer,
    ShelfModel,
    in_window,
    translate,
)

if TYPE_CHECKING:
    from runtime import CatalogueModel, Connection, DownloadPlan, Fit, HubModel, ShelfEntry, ShelvedAdapter


log = logging.getLogger(__name__)


def model_of(entry: ShelfEntry, source: str, own: LoadChoice) -> ShelfModel:
    """A model of the shelf; `source` is the loaded one, `own` the model's load choice."""
    form = f"{entry.quantisation}, {entry.format}" if entry.quantisation else entry.format
    return ShelfModel(
        name=entry.name,
        title=entry.title,
        folder=str(entry.path),
        size=entry.bytes,
        form=form,
        context=entry.context,
        engines=entry.backends,
        last_used=entry.last_used,
        fingerprint=entry.fingerprint or "",
        problem="" if entry.complete else in_window(entry.problem),
        loaded=entry.name == source,
        linked=entry.format == "link",
        own_load=words_of(own),
        convertible=entry.complete and entry.quantisation is None and "mlx" in entry.backends,
    )


def adapter_of(found: ShelvedAdapter) -> ShelfModel:
    """An adapter of the shelf."""
    base = found.base or translate("Workbench", "an unknown base")
    what = translate("Workbench", "activated adapter") if found.kind == "alora" else translate("Workbench", "adapter")
    return ShelfModel(
        name=found.name,
        title=found.name,
        folder=str(found.path),
        size=found.bytes,
        form=translate("Workbench", "{0}, for {1}").format(what, base),
        problem=in_window(found.problem),
        kind="adapter",
    )


def fit_of(fit: Fit) -> FitView:
    """The memory a model needs."""
    return FitView(
        engine=fit.backend,
        context=fit.context,
        weights=fit.weights,
        kv=fit.kv,
        working=fit.libraries + fit.working,
        memory=fit.memory,
        free=fit.free,
        longest=fit.longest,
        loading=fit.loading,
    )


def plan_of(plan: DownloadPlan, fit: Fit | None, own_context: int | None) -> ModelPlan:
    """The download of a repository; `own_context` is the context length chosen for it."""
    return ModelPlan(
        repository=plan.repository,
        commit=plan.commit,
        name=plan.name,
        files=[(file.name, file.size) for file in plan.files],
        size=plan.bytes,
        kept=plan.kept,
        disk=plan.free,
        licence=plan.licence,
        engines=plan.backends,
        here=bool(plan.here),
        kind=plan.kind,
        base=str(plan.config.get("base_model_name_or_path") or "") if plan.kind == "adapter" else "",
        context=plan.context,
        fit=None if fit is None else fit_of(fit),
        own_context=own_context,
    )


GOOD_FOR = (  # the catalogue's descriptions of its models
    QT_TRANSLATE_NOOP("Catalogue", "trying things out: very small, and fast on any machine"),
    QT_TRANSLATE_NOOP("Catalogue", "short answers and rewriting on an old machine"),
    QT_TRANSLATE_NOOP("Catalogue", "a small model that thinks before it answers; many languages"),
    QT_TRANSLATE_NOOP("Catalogue", "plain chat and summaries in little memory"),
    QT_TRANSLATE_NOOP("Catalogue", "chat and summaries of long texts"),
    QT_TRANSLATE_NOOP("Catalogue", "English chat and rewriting, made from open data"),
    QT_TRANSLATE_NOOP("Catalogue", "thinking and tool calls on a laptop; many languages"),
    QT_TRANSLATE_NOOP("Catalogue", "well-worded English chat"),
    QT_TRANSLATE_NOOP("Catalogue", "everyday chat, long texts and tool calls"),
    QT_TRANSLATE_NOOP("Catalogue", "reasoning, mathematics and code in English; texts up to 4,096 tokens"),
    QT_TRANSLATE_NOOP("Catalogue", "thinking, code and tool calls; many languages"),
    QT_TRANSLATE_NOOP("Catalogue", "everyday chat, writing and tool calls"),
    QT_TRANSLATE_NOOP("Catalogue", "the strongest of these: thinking, code, tool calls, many languages"),
)


def offer_of(model: CatalogueModel, here: set[str], *, best: bool) -> Offer:
    """A model of the catalogue; `here` are the repositories and titles on the shelf."""
    chosen, fit = model.variant(), fit_of(model.fit())
    return Offer(
        name=model.name,
        wanted=chosen.source,
        parameters=model.parameters,
        size=chosen.bytes,
        licence=model.licence,
        good_for=translate("Catalogue", model.good_for),
        fit=fit,
        gated=chosen.gated,
        here=any({variant.source, variant.source.rpartition("/")[2]} & here for variant in model.variants),
        best=best,
    )


def find_of(model: HubModel, here: set[str]) -> HubFind:
    """A search result of the hub; `here` are the engines of this machine."""
    parameters = parameters_of(model.parameters) if model.parameters else ""
    what = translate("Workbench", "an adapter") if model.kind == "adapter" else model.quantisation or ""
    downloads = translate("Workbench", "{0:,} downloads last month").format(model.downloads)
    private = translate("Workbench", "private") if model.private else ""
    parts = (parameters, what, model.licence, downloads, private)
    runs = bool(here & set(model.backends))
    problem = in_window(model.problem) or ("" if runs else translate("Workbench", "no engine on this machine can run it"))
    return HubFind(model.source, " · ".join(part for part in parts if part), problem, model.gated, model.kind)


def backend_choices(asked: str) -> list[BackendChoice]:
    """Every engine for real models, sorted by name; `asked` may be "auto".

    vLLM is left out: the shelf connects to a server.
    """
    chosen = runtime.default_backend() if asked == "auto" else asked
    return [
        BackendChoice(name, "" if state is True else in_window(str(state)), name == chosen)
        for name, state in sorted(runtime.available_backends().items())
        if name == chosen or not (runtime.brings_text(name) or name == "vllm")
    ]


def parameters_of(count: int) -> str:
    """A parameter count in words."""
    return translate("Workbench", "{0:,.0f} M parameters").format(count / 1e6)


def detail_of(entry: ShelfEntry) -> str:
    """A model's size and format, or its problem, in words."""
    parameters = parameters_of(entry.parameters) + " · " if entry.parameters else ""
    return in_window(entry.problem) or f"{parameters}{entry.bytes / 1e6:,.0f} MB · {entry.format}"


def servers_here(source: str) -> list[Connection]:
    """Named models on servers, and the one in use if it has no name; blocking, any thread."""
    try:
        kept = [each for each in runtime.connections() if runtime.find_connection(each.name) is not None]
    except runtime.ModelLoadError as fault:  # local models are listed anyway
        log.warning("%s", fault)
        kept = []
    used = None if any(each.name == source for each in kept) else runtime.find_connection(source)
    return kept if used is None else [*kept, used]


def title_of(connection: Connection) -> str:
    """The name of a connection, else the model's id on the server."""
    return connection.name if "://" not in connection.name else connection.model or place_of(connection)


def place_of(connection: Connection) -> str:
    """The host of a connection, in words."""
    return translate("Workbench", "on {0}").format(connection.base_url.partition("://")[2].rstrip("/").removesuffix("/v1"))


def server_of(connection: Connection, source: str) -> ShelfModel:
    """A model on a server; `source` is the loaded one."""
    return ShelfModel(
        name=connection.name,
        title=title_of(connection),
        folder="",
        size=0,
        form=" · ".join(part for part in (connection.model or "", place_of(connection)) if part),
        loaded=connection.name == source,
        kind="server",
    )


def words_of(choice: LoadChoice) -> str:
    """A load choice for a row of the shelf; "" for the default one."""
    context = "" if choice.context is None else translate("Workbench", "{0:,} tokens").format(choice.context)
    weights = "" if choice.weights == "auto" else translate("Workbench", "{0} weights").format(choice.weights)
    return ", ".join(part for part in (context, weights) if part)
