"""How a token was drawn, from what is stored; and, where a model is asked, everything it might have said there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from app.faults import not_loaded
from app.supervisor import Supervisor
from app.workbench.answers.answer import RunningAnswers
from app.workbench.answers.provenance import MADE, beams_of
from app.workbench.answers.provenance_text import stack_words
from app.workbench.prompt.prompt import check_tokens
from app.workbench.prompt.vocabulary import Vocabulary
from app.workbench.refusals import GONE, intact, refusing, stored
from app.workbench.sessions.open_sessions import OpenSessions
from app.workbench.setup.adapters import Adapters, Speaker
from app.workbench.setup.values import mapping_of, spoken_name, with_weights
from app.workbench.tree.runs import EMPTY
from app.workbench.tree.session import WholeSession
from runtime import LanguageModel, LensCost, LensRun, RuntimeFault, SamplingOptions
from storage import NodeRow, SessionStore
from ui import QT_TRANSLATE_NOOP, Drawing, Refusal, TurnDepth, TurnDepthCost, translate

NO_MODEL = QT_TRANSLATE_NOOP("Workbench", "no model runs; send a message, or choose a model, and it starts")
MOST_FOLLOWED = 64  # tokens that `LanguageModel.lens` ranks in each layer; a run of the command line may have more
UNKNOWN_LAYER = -2  # of a token that nothing stands before
_SETTINGS = {field.name for field in fields(SamplingOptions)}


@dataclass(eq=False, repr=False)
class Drawings:
    """Looks up draws (`ui.port.DrawingCommands`)."""

    _store: SessionStore  # knows the names of models
    _supervisor: Supervisor  # knows the model that runs
    _sessions: OpenSessions  # the open sessions
    _vocabulary: Vocabulary  # knows the bytes of tokens
    _adapters: Adapters  # of a session, brought into the model
    _running: RunningAnswers  # the options of answers in work

    async def find(self, session_id: int, node_id: int, index: int) -> Drawing | None:
        session = await self._sessions.whole(session_id, node_id)
        place = session.locate(node_id, index)
        if place is None:
            return None
        node, offset = place
        model = self._supervisor.running
        mine = None if model is None else await self._numbers_now(session, model)
        theirs = node.kv_fingerprint or mine  # a node that is being written is the running model's
        made = _made(node)
        said = mapping_of(made.get("options")) or node.stats
        seed, branch, sampling = (said.get(name) for name in ("seed", "branch", "sampling"))
        options = self._running.options_of(node.id)
        if options is not None:
            seed, branch, sampling = options.seed, options.branch, options.sampling.given()
        return Drawing(
            sampling=self._settings(sampling),
            seed=seed if isinstance(seed, int) else None,
            branch=branch if isinstance(branch, int) else 0,
            history=np.array(ids_before(session, node, offset), np.int32),
            model=_maker(made) or await self._name_of(theirs, model),
            stale=in_use(session, model, made) if model is not None and theirs != mine else "",
            can_ask=model is not None and theirs == mine and model.has("whole_rows"),
            beams=beams_of(node),
        )

    async def whole_row(self, session_id: int, node_id: int, index: int, *, here: bool = False) -> npt.NDArray[np.float32]:
        """Raw log-probabilities before a token, from the model that runs.

        Args:
            session_id: Which session.
            node_id: The turn.
            index: The token.
            here: Only from a model of this machine: nothing is sent to a server.

        Raises:
            Refusal: None runs, or it cannot.
        """
        session = await self._sessions.whole(session_id, node_id)
        place = session.locate(node_id, index)
        if place is None:
            raise Refusal(translate("Workbench", GONE))
        ids = ids_before(session, *place)
        if not ids:
            raise Refusal(translate("Workbench", "the first token has nothing before it, so it has no probability"))
        model = self._supervisor.running
        if model is None:
            raise Refusal(translate("Workbench", NO_MODEL))
        if here and not model.has("kv"):
            raise Refusal(translate("Workbench", "the model is on a server, which is asked only on request"))
        async with self._speaking(model, session, place[0]) as speaker:
            return await model.next_token_logprobs(ids, adapters=speaker.adapters)

    async def depth(self, session_id: int, node_id: int, index: int, also: Sequence[int] = ()) -> LensRun:
        """What each layer of the model that runs would answer before a token.

        Args:
            session_id: Which session.
            node_id: The turn.
            index: The token.
            also: Ids whose ranks are wanted, before those of its stored alternatives.

        Raises:
            Refusal: None runs, another one wrote the token, or its layers cannot be read.
        """
        session = await self._sessions.whole(session_id, node_id)
        place = session.locate(node_id, index)
        if place is None:
            raise Refusal(translate("Workbench", GONE))
        node, offset = place
        ids = ids_before(session, node, offset)
        if not ids:
            raise Refusal(translate("Workbench", "the first token has nothing before it, so it has no layers"))
        model = await self._maker_of(session, node)
        record = session.runs[node.id].record(offset)
        async with refusing(self._supervisor, model):
            check_tokens(model, session, session.tree.path(node.id))
            speaker = await self._adapters.speaker(session, model)
            followed = dict.fromkeys([*also, *record.top_ids])
            tokens = [token for token in followed if token != record.token_id][:MOST_FOLLOWED]
            path = [*ids, record.token_id]
            return await model.lens(path, [len(ids) - 1], tokens=tokens, adapters=speaker.adapters)

    async def turn_depth_cost(self, session_id: int, node_id: int) -> TurnDepthCost:
        """What `turn_depth` would take.

        Raises:
            Refusal: As `turn_depth`.
        """
        session = await self._sessions.whole(session_id, node_id)
        nodes, count = _turn(session, node_id)
        model = await self._maker_of(session, *nodes)
        return TurnDepthCost(count, LensCost.of(model.info, count, 0).like_tokens)

    async def turn_depth(self, session_id: int, node_id: int, on_progress: Callable[[int, int], None]) -> TurnDepth:
        """At which layer of the model that runs each token of a turn was decided.

        Raises:
            Refusal: None runs, another one wrote the turn, or its layers cannot be read.
        """
        session = await self._sessions.whole(session_id, node_id)
        nodes, count = _turn(session, node_id)
        model = await self._maker_of(session, *nodes)
        async with refusing(self._supervisor, model):
            path = session.tree.path(node_id)
            check_tokens(model, session, path)
            speaker = await self._adapters.speaker(session, model)
            ids = session.path_ids(path)
            places = range(max(len(ids) - count - 1, 0), len(ids) - 1)
            leads = np.full(count, UNKNOWN_LAYER, np.int32)
            if places:
                run = await model.lens(
                    ids, places, top_k=0, adapters=speaker.adapters, on_progress=lambda p: on_progress(p.done, p.total)
                )
                leads[count - len(places) :] = run.leads_from()
            return TurnDepth(leads, model.info.layers)

    async def preview(self, session_id: int, node_id: int, index: int, token_id: int, most: int) -> Sequence[bytes]:
        """The likeliest tokens after another token at a place, by queries, which answers go before. Nothing is saved.

        Raises:
            Refusal: There is no model, or it cannot.
        """
        session = await self._sessions.whole(session_id, node_id)
        place = session.locate(node_id, index)
        if place is None:
            raise Refusal(translate("Workbench", GONE))
        try:
            model = await self._supervisor.model()
        except RuntimeFault as fault:
            raise Refusal(not_loaded(fault)) from fault
        ids = [*ids_before(session, *place), token_id]
        words: list[bytes] = []
        async with self._speaking(model, session, place[0]) as speaker:
            while len(words) < most and not model.is_eos(ids[-1]) and len(ids) < model.info.context_length:
                top = await model.top_logprobs(ids, 1, adapters=speaker.adapters)
                ids.append(int(top.ids[0]))
                words.append(b"" if model.is_eos(ids[-1]) else model.decode_token(ids[-1]))
        return [word for word in words if word]

    async def _maker_of(self, session: WholeSession, *nodes: NodeRow) -> LanguageModel:
        """The model that runs, if its layers decided the tokens of all these nodes.

        Raises:
            Refusal: None runs, or another one wrote them.
        """
        model = self._supervisor.running
        if model is None:
            raise Refusal(translate("Workbench", NO_MODEL))
        mine = await self._numbers_now(session, model)
        for node in nodes:
            if node.kv_fingerprint and node.kv_fingerprint != mine:
                maker = await self._name_of(node.kv_fingerprint, model) or translate("Workbench", "another model")
                words = translate(
                    "Workbench", "these tokens were made with {0}; the layers of {1}, which is in use, did not decide them"
                )
                raise Refusal(words.format(maker, in_use(session, model, _made(node))))
        return model

    async def _name_of(self, fingerprint: str | None, model: LanguageModel | None) -> str:
        if fingerprint is None:
            return ""
        if model is not None and model.info.numbers_fingerprint == fingerprint:
            return spoken_name(model.info)
        known = await stored(intact(self._store.model(fingerprint))) or {}
        name = known.get("name")
        return with_weights(name, known.get("quantisation")) if isinstance(name, str) else ""

    async def _numbers_now(self, session: WholeSession, model: LanguageModel) -> str:
        """What the model's numbers are filed under in a session; where its adapters cannot be used, nothing is."""
        try:
            return (await self._adapters.speaker(session, model)).numbers
        except RuntimeFault:
            return ""

    @asynccontextmanager
    async def _speaking(self, model: LanguageModel, session: WholeSession, node: NodeRow) -> AsyncIterator[Speaker]:
        """The model as it reads a turn.

        Raises:
            Refusal: The path was written with another tokenizer, or the model or an adapter cannot be used.
        """
        async with refusing(self._supervisor, model):
            check_tokens(model, session, session.tree.path(node.id))
            yield await self._adapters.speaker(session, model)

    def _settings(self, held: object) -> SamplingOptions | None:
        """Stored settings; what a newer version wrote beside them is passed over."""
        if not isinstance(held, Mapping):
            return None
        values: dict[str, Any] = {name: value for name, value in held.items() if name in _SETTINGS}
        try:
            for name in ("banned_tokens", "dry_breakers", "order"):
                if values.get(name) is not None:
                    values[name] = tuple(values[name])
            if values.get("logit_bias"):
                values["logit_bias"] = {int(token): float(bias) for token, bias in values["logit_bias"].items()}  # JSON's keys
            settings = SamplingOptions(**values).check()
        except (RuntimeFault, AttributeError, TypeError, ValueError):
            return None
        if settings.dry_multiplier:
            settings = replace(settings, dry_breakers=self._vocabulary.holding(settings.dry_breakers))
        return settings


def _turn(session: WholeSession, node_id: int) -> tuple[list[NodeRow], int]:
    """The nodes of the turn that a node ends, and how many tokens it has on the path.

    Raises:
        Refusal: There is no such turn, or it has no tokens.
    """
    turns = session.tree.turns(node_id)
    segments = turns[-1].segments if turns else ()
    count = len(session.path_ids(segments))
    if not count:
        raise Refusal(translate("Workbench", GONE))
    return [segment.node for segment in segments], count


def _made(node: NodeRow) -> Mapping[str, Any]:
    held = node.stats.get(MADE)
    return held if isinstance(held, Mapping) else {}


def _maker(made: Mapping[str, Any]) -> str:
    name = made.get("model")
    return with_weights(str(name), made.get("quantisation")) if name else ""


def in_use(session: WholeSession, model: LanguageModel, made: Mapping[str, Any]) -> str:
    """The model in use, where another one made the answer; with its adapters, where only they differ."""
    if made.get("base") != model.info.kv_fingerprint:
        return spoken_name(model.info)
    choices = session.values.adapters if session.values is not None else ()
    uses = [(choice.name, choice.scale) for choice in choices if choice.on] if choices else model.info.lora_stack
    return translate("Workbench", "{0} with {1}").format(spoken_name(model.info), stack_words(uses))


def ids_before(session: WholeSession, node: NodeRow, offset: int) -> list[int]:
    """The ids of the path to token `offset` of a node, without it."""
    path = session.tree.path(node.id)
    own: list[int] = session.runs.get(node.id, EMPTY).ids.tolist()
    return session.path_ids(path[:-1]) + own[:offset]
