"""Compares the path shown under the model in use and a second one (`ui.port.ComparisonCommands`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

import runtime  # its names are imported at their first use: the window opens without them
from app.supervisor import Supervisor, ended
from app.workbench.compare.comparison_choices import comparison_choices, in_words, other_models
from app.workbench.compare.comparison_engine import ComparisonEngine, room_for
from app.workbench.models.settings import Settings
from app.workbench.models.views import backend_choices
from app.workbench.prompt.prompt import check_tokens
from app.workbench.refusals import loaded_model, refusing
from app.workbench.sessions.open_sessions import OpenSessions
from app.workbench.setup.session_adapters import AdaptedModel, Adapters, values_of
from app.workbench.setup.values import spoken_name
from app.workbench.tree.runs import EMPTY
from app.workbench.tree.session import WholeSession
from app.workbench.tree.tree import PathSegment
from runtime import EngineDiedError, InvalidRequestError, RuntimeFault
from ui import (
    QT_TRANSLATE_NOOP,
    AdapterChoice,
    ComparisonChoice,
    NoRoomRefusal,
    OnCompared,
    PathComparison,
    Refusal,
    WeightsForm,
    translate,
)

MOST_ROWS = 512  # last tokens of a path that are compared by whole distributions by default; two queries for each
UNREAD = QT_TRANSLATE_NOOP("Workbench", "no model has read this path yet: send a message, then there is something to compare")


@dataclass(eq=False, repr=False)
class Comparison:
    """Compares paths under the model in use and a second one, whose engine it owns (`ui.port.ComparisonCommands`)."""

    _supervisor: Supervisor  # of the model in use
    _sessions: OpenSessions
    _settings: Settings  # load options of models
    _adapters: Adapters  # loads a session's adapters into either model
    _comparing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def __post_init__(self) -> None:
        self._engine = ComparisonEngine(self._supervisor)

    async def choices(self, session_id: int) -> Sequence[ComparisonChoice]:
        entries = await asyncio.to_thread(lambda: runtime.list_models())
        session = self._sessions.opened(session_id)
        running = self._supervisor.running
        info = None if running is None else running.info
        if running is not None and not running.has("kv"):  # a server is compared with models of this machine
            return other_models(entries, backend_choices(self._supervisor.backend), self._set_weights)
        digest = next((entry.fingerprint for entry in entries if entry.name == self._supervisor.source), None) or ""
        return comparison_choices(
            self._supervisor.source,
            backend_choices(self._supervisor.backend),
            entries,
            values_of(session).adapters,
            dtype="" if info is None else info.dtype,
            weights=_held(info),
            forms=[] if info is None else await asyncio.to_thread(_forms, info, digest),
            set_weights=self._set_weights,
        )

    def _set_weights(self, name: str, backend: str) -> str:
        from app.fitting import forms_under  # the window opens without it

        options = self._settings.options_for(name)
        _plain, *others = forms_under(backend, options) or ("",)
        return options["weights"] if options["weights"] in others else ""

    async def compare(
        self, session_id: int, choice: ComparisonChoice, progress: OnCompared, *, anyway: bool = False, kl_of_all: bool = False
    ) -> PathComparison:
        """Compares the path shown; first waits for a comparison of any window that is running or being stopped."""
        self._sessions.opened(session_id)
        if self._comparing.locked():
            progress(translate("Workbench", "waiting for another comparison to end"), 0, 0)
        async with self._comparing:
            session = await self._sessions.whole(session_id)
            return await self._compare(session, choice, progress, anyway=anyway, kl_of_all=kl_of_all)

    @property
    def keeps_model(self) -> bool:
        return self._engine.keeps

    async def keep_model(self, keep: bool) -> None:  # a state, not an option
        """Keeps the second engine loaded between comparisons, or not; a running comparison is not affected."""
        self._engine.keeps = keep
        if not keep and not self._comparing.locked():
            await self._engine.close()

    async def close(self, within: float | None = None) -> None:
        """Ends the second engine, within 2 s or `within` seconds."""
        await self._engine.close(within)

    async def _compare(
        self, session: WholeSession, choice: ComparisonChoice, progress: OnCompared, *, anyway: bool, kl_of_all: bool
    ) -> PathComparison:
        """Compares the path of a whole session under both models.

        Raises:
            NoRoomRefusal: Memory is short, and `anyway` is false.
            Refusal: There is nothing to compare, or one of the models cannot run.
        """
        if choice.problem:
            raise Refusal(f"{choice.label}: {choice.problem}")
        segments = read_segments(session)
        ids = session.path_ids(segments)
        if not ids:
            raise Refusal(translate("Workbench", UNREAD))
        spans_of = places(session, segments)
        kl_from = 0 if kl_of_all else max(len(ids) - MOST_ROWS, 0)
        if not (anyway or choice.same_engine or self._engine.runs(choice)):
            check_room(choice, await asyncio.to_thread(room_for, choice, len(ids)))
        try:
            left, used = await self._left(session, segments, progress)
            found = await self._found(left, ids, choice, progress, kl_from)
        finally:
            if not (choice.same_engine or self._engine.keeps):
                await self._engine.close()
        inside = np.repeat(np.arange(len(found)), np.diff(found.left.borders))
        on = [each for each in used if each.on]
        spoken = spoken_name(left.model.info)
        name = translate("Workbench", "{0} with {1}").format(spoken, in_words(on)) if on else spoken
        spans = {node: inside[start:stop] for node, (start, stop) in spans_of.items()}
        return PathComparison(session.id, name, choice.label, found, spans, len(ids), kl_from)

    async def _left(
        self, session: WholeSession, segments: Sequence[PathSegment], progress: OnCompared
    ) -> tuple[AdaptedModel, Sequence[AdapterChoice]]:
        """The model in use under the session's adapters, and these adapters, since the session's may change meanwhile."""
        if self._supervisor.running is None:
            progress(translate("Workbench", "starting the engine"), 0, 0)
        model = await loaded_model(self._supervisor)
        async with refusing(self._supervisor, model):
            check_tokens(model, session, segments)
            used = values_of(session).adapters
            return await self._adapters.under(model, used or None), used

    async def _right(
        self, left: runtime.LanguageModel, choice: ComparisonChoice, progress: OnCompared
    ) -> runtime.LanguageModel:
        if choice.same_engine:
            return left
        progress(translate("Workbench", "loading {0}").format(choice.label), 0, 0)
        try:
            return await self._engine.model(choice, lambda words: progress(words, 0, 0))
        except (RuntimeFault, OSError) as fault:
            raise Refusal(translate("Workbench", "{0} could not be loaded: {1}").format(choice.label, fault)) from fault

    async def _found(
        self, left: AdaptedModel, ids: list[int], choice: ComparisonChoice, progress: OnCompared, kl_from: int
    ) -> runtime.ModelComparison:
        right = await self._right(left.model, choice, progress)
        try:
            stack = await self._adapters.bring(right, choice.adapters)
            return await runtime.compare_models(
                left.model,
                right,
                ids,
                left_adapters=left.adapters,
                right_adapters=stack,
                kl_start=kl_from,
                on_progress=lambda done, total: progress(translate("Workbench", "comparing"), done, total),
            )
        except EngineDiedError as fault:
            is_left = choice.same_engine or ended(left.model)
            await (self._supervisor.died(left.model) if is_left else self._engine.died(right))
            words = translate("Workbench", "the engine of {0} stopped; compare again to restart it")
            raise Refusal(words.format(left.model.info.name if is_left else choice.label)) from fault
        except InvalidRequestError as fault:
            raise Refusal(translate("Workbench", "{0} cannot be compared with: {1}").format(choice.label, fault)) from fault
        except RuntimeFault as fault:
            raise Refusal(str(fault)) from fault
        finally:
            if choice.same_engine:
                self._adapters.free(choice.adapters or ())


def _held(info: runtime.ModelInfo | None) -> str:
    """The form of the linear weights of a loaded model."""
    form = "auto" if info is None else str(info.options.get("weights", "auto"))
    return "float32" if form == "auto" else form


def _forms(info: runtime.ModelInfo, digest: str) -> list[WeightsForm]:
    """The forms in which an engine could hold a model's weights, with their measured perplexity."""
    if info.dtype.rpartition(".")[2] != "float32":
        return []
    costs = {each.weights: str(each) for each in runtime.measured_perplexities(digest)}
    return [WeightsForm(form, costs.get(form, "")) for form in runtime.weight_forms(info.backend, info.device)]


def read_segments(session: WholeSession) -> list[PathSegment]:
    """The path up to the first text without tokens."""
    found = []
    for segment in session.tree.path(session.tip):
        if segment.node.text and not len(session.runs.get(segment.node.id, EMPTY)):
            break
        found.append(segment)
    return found


def places(session: WholeSession, segments: Sequence[PathSegment]) -> dict[int, tuple[int, int]]:
    """The range of each turn's tokens in the path, by the turn's node; turns without tokens are left out."""
    found: dict[int, tuple[int, int]] = {}
    at, known = 0, {segment.node.id for segment in segments}
    for turn in session.tree.turns(session.tip):
        held = [segment for segment in turn.segments if segment.node.id in known]
        size = len(session.path_ids(held))
        if size:
            found[turn.tip.id] = at, at + size
        at += size
        if len(held) < len(turn.segments):
            break
    return found


def check_room(choice: ComparisonChoice, fit: runtime.Fit | None) -> None:
    """Refuses a model that does not fit into free memory.

    Raises:
        NoRoomRefusal: With the numbers.
    """
    if fit is None or fit.total <= fit.free:
        return
    raise NoRoomRefusal(
        translate("Workbench", "{0} would take about {1} beside the model in use; {2} are free").format(
            choice.label, _gb(fit.total), _gb(fit.free)
        )
    )


def _gb(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
