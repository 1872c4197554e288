"""The path that is shown under the model in use and a second one. Nothing of it is written anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from app.faults import not_loaded
from app.supervisor import Supervisor, ended
from app.workbench.compare.second_choices import words
from app.workbench.compare.second_engine import SecondEngine, room_for
from app.workbench.prompt.prompt import check_tokens
from app.workbench.setup.adapters import Adapters, values_of
from app.workbench.setup.option_sources import spoken_name
from app.workbench.tree.runs import EMPTY
from app.workbench.tree.session import WholeSession
from app.workbench.tree.tree import Segment
from runtime import EngineDiedError, InvalidRequestError, RuntimeFault
from ui import QT_TRANSLATE_NOOP, NoRoomRefusal, OnCompared, PathComparison, Refusal, SecondChoice, translate

if TYPE_CHECKING:
    from app.workbench.prompt.speaker import Speaker
    from runtime import Fit, LanguageModel, ModelComparison

MOST_ROWS = 512  # tokens at the end of a path whose full vectors are compared unless all are wanted: two queries for each
UNREAD = QT_TRANSLATE_NOOP("Workbench", "no model has read this path yet: send a message, then there is something to compare")


class Comparing:
    """Compares paths.

    Args:
        supervisor: Has the model in use.
        second: Has the other one.
        adapters: Of the session, brought into either.
    """

    def __init__(self, supervisor: Supervisor, second: SecondEngine, adapters: Adapters) -> None:
        self._supervisor = supervisor
        self._second = second
        self._adapters = adapters

    async def compare(
        self, session: WholeSession, choice: SecondChoice, progress: OnCompared, *, anyway: bool, kl_of_all: bool
    ) -> PathComparison:
        """The path of a session, read whole, under both.

        Raises:
            NoRoomRefusal: Memory is short, and `anyway` is not said.
            Refusal: There is nothing to compare, or one of the models cannot.
        """
        if choice.problem:
            raise Refusal(f"{choice.label}: {choice.problem}")
        segments = read_segments(session)
        ids = session.path_ids(segments)
        if not ids:
            raise Refusal(translate("Workbench", UNREAD))
        spans_of = places(session, segments)
        kl_from = 0 if kl_of_all else max(len(ids) - MOST_ROWS, 0)
        if not (anyway or choice.same_engine or self._second.runs(choice)):
            check_room(choice, await room_for(choice, len(ids)))
        try:
            left = await self._left(session, segments, progress)
            found = await self._found(left, ids, choice, progress, kl_from)
        finally:
            if not choice.same_engine:
                await self._second.release()
        inside = np.repeat(np.arange(len(found)), np.diff(found.left.borders))
        on = [each for each in values_of(session).adapters if each.on]
        spoken = spoken_name(left.model.info)
        name = translate("Workbench", "{0} with {1}").format(spoken, words(on)) if on else spoken
        spans = {node: inside[start:stop] for node, (start, stop) in spans_of.items()}
        return PathComparison(session.id, name, choice.label, found, spans, len(ids), kl_from)

    async def _left(self, session: WholeSession, segments: Sequence[Segment], progress: OnCompared) -> Speaker:
        """The model in use under the session's adapters."""
        if self._supervisor.running is None:
            progress(translate("Workbench", "starting the engine"), 0, 0)
        try:
            model = await self._supervisor.model()
        except RuntimeFault as fault:
            raise Refusal(not_loaded(fault)) from fault
        try:
            check_tokens(model, session, segments)
            return await self._adapters.speaker(session, model)
        except EngineDiedError as fault:
            await self._supervisor.died(model)
            raise Refusal(str(fault)) from fault
        except RuntimeFault as fault:
            raise Refusal(str(fault)) from fault

    async def _right(self, left: LanguageModel, choice: SecondChoice, progress: OnCompared) -> LanguageModel:
        if choice.same_engine:
            return left
        progress(translate("Workbench", "loading {0}").format(choice.label), 0, 0)
        try:
            return await self._second.model(choice, lambda words: progress(words, 0, 0))
        except (RuntimeFault, OSError) as fault:
            raise Refusal(translate("Workbench", "{0} could not be loaded: {1}").format(choice.label, fault)) from fault

    async def _found(
        self, left: Speaker, ids: list[int], choice: SecondChoice, progress: OnCompared, kl_from: int
    ) -> ModelComparison:
        from runtime import compare_models  # the window opens without it

        right = await self._right(left.model, choice, progress)
        try:
            stack = await self._adapters.bring(right, choice.adapters)
            return await compare_models(
                left.model,
                right,
                ids,
                left_adapters=left.adapters,
                right_adapters=stack,
                kl_start=kl_from,
                on_progress=lambda done, total: progress(translate("Workbench", "comparing"), done, total),
            )
        except EngineDiedError as fault:
            if choice.same_engine or ended(left.model):
                await self._supervisor.died(left.model)
                raise Refusal(
                    translate("Workbench", "the engine of {0} stopped; compare again to restart it").format(
                        left.model.info.name
                    )
                ) from fault
            await self._second.died(right)
            raise Refusal(
                translate("Workbench", "the engine of {0} stopped; compare again to restart it").format(choice.label)
            ) from fault
        except InvalidRequestError as fault:
            raise Refusal(translate("Workbench", "{0} cannot be compared with: {1}").format(choice.label, fault)) from fault
        except RuntimeFault as fault:
            raise Refusal(str(fault)) from fault
        finally:
            if choice.same_engine:
                self._adapters.free(choice.adapters or ())


def read_segments(session: WholeSession) -> list[Segment]:
    """The path as far as it has tokens: what somebody typed since has none until an answer begins."""
    found = []
    for segment in session.tree.path(session.tip):
        if segment.node.text and not len(session.runs.get(segment.node.id, EMPTY)):
            break
        found.append(segment)
    return found


def places(session: WholeSession, segments: Sequence[Segment]) -> dict[int, tuple[int, int]]:
    """Which tokens of the path a turn's run begins with, by the turn's node; turns without any are left out."""
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


def check_room(choice: SecondChoice, fit: Fit | None) -> None:
    """Refuses what memory has no room for now.

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
