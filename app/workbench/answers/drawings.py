"""How a token was drawn, from stored data; with a model also its whole distribution, its layers, and previews."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from app.supervisor import Supervisor
from app.workbench.answers.answer import RunningAnswers
from app.workbench.answers.provenance import beams_of, made_of
from app.workbench.answers.provenance_text import stack_words
from app.workbench.prompt.prompt import check_tokens
from app.workbench.prompt.vocabulary import Vocabulary
from app.workbench.refusals import GONE, intact, loaded_model, refusing, stored
from app.workbench.sessions.open_sessions import OpenSessions
from app.workbench.setup.session_adapters import AdaptedModel, Adapters
from app.workbench.setup.values import mapping_of, spoken_name, with_weights
from app.workbench.tree.runs import EMPTY
from app.workbench.tree.session import WholeSession
from runtime import LanguageModel, LensCost, LensRun, RuntimeFault, SamplingOptions
from storage import NodeRow, SessionStore
from ui import QT_TRANSLATE_NOOP, Drawing, Refusal, TurnDepth, TurnDepthCost, translate

NO_MODEL = QT_TRANSLATE_NOOP("Workbench", "no model runs; send a message, or choose a model, and it starts")
MOST_FOLLOWED = 64  # tokens that `LanguageModel.lens` ranks in each layer
UNKNOWN_LAYER = -2  # of the first token of a path
_SETTINGS = {field.name for field in fields(SamplingOptions)}


@dataclass(eq=False, repr=False)
class Drawings:
    """Looks up draws (`ui.port.DrawingCommands`)."""

    _store: SessionStore  # names of models
    _supervisor: Supervisor
    _sessions: OpenSessions
    _vocabulary: Vocabulary
    _adapters: Adapters  # loads a session's adapters
    _running: RunningAnswers  # options of running answers

    async def find(self, session_id: int, node_id: int, index: int) -> Drawing | None:
        session = await self._sessions.whole(session_id, node_id)
        place = session.locate(node_id, index)
        if place is None:
            return None
        node, offset = place
        model = self._supervisor.running
        mine = None if model is None else await self._numbers_now(session, model)
        theirs = node.kv_fingerprint or mine  # an open node is written by the running model
        made = made_of(node)
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
        """Raw log-probabilities ``(vocab,) float32`` of the token at `index` of a turn, from the running model.

        With `here`, only from a model of this machine: nothing is sent to a server.

        Raises:
            Refusal: No model runs, or it cannot compute them.
        """
        session, node, offset = await self._token(session_id, node_id, index)
        ids = ids_before(session, node, offset)
        if not ids:
            raise Refusal(translate("Workbench", "the first token has nothing before it, so it has no probability"))
        model = self._supervisor.running
        if model is None:
            raise Refusal(translate("Workbench", NO_MODEL))
        if here and not model.has("kv"):
            raise Refusal(translate("Workbench", "the model is on a server, which is asked only on request"))
        async with self._query(model, session, node) as adapted:
            return await model.next_token_logprobs(ids, adapters=adapted.adapters)

    async def depth(self, session_id: int, node_id: int, index: int, also: Sequence[int] = ()) -> LensRun:
        """What each layer of the running model predicts for the token at `index` of a turn.

        The ids in `also` are ranked too, before its stored alternatives.

        Raises:
            Refusal: No model runs, another one wrote the token, or its layers cannot be read.
        """
        session, node, offset = await self._token(session_id, node_id, index)
        ids = ids_before(session, node, offset)
        if not ids:
            raise Refusal(translate("Workbench", "the first token has nothing before it, so it has no layers"))
        model = await self._maker_of(session, node)
        record = session.runs[node.id].record(offset)
        async with refusing(self._supervisor, model):
            check_tokens(model, session, session.tree.path(node.id))
            adapted = await self._adapters.adapted(session, model)
            followed = dict.fromkeys([*also, *record.top_ids])
            tokens = [token for token in followed if token != record.token_id][:MOST_FOLLOWED]
            path = [*ids, record.token_id]
            return await model.lens(path, [len(ids) - 1], tokens=tokens, adapters=adapted.adapters)

    async def turn_depth_cost(self, session_id: int, node_id: int) -> TurnDepthCost:
        """The cost of `turn_depth`, which raises the same refusals."""
        session = await self._sessions.whole(session_id, node_id)
        nodes, count = _turn(session, node_id)
        model = await self._maker_of(session, *nodes)
        return TurnDepthCost(count, LensCost.of(model.info, count, 0).like_tokens)

    async def turn_depth(self, session_id: int, node_id: int, on_progress: Callable[[int, int], None]) -> TurnDepth:
        """The layer of the running model at which each token of a turn was decided.

        Raises:
            Refusal: No model runs, another one wrote the turn, or its layers cannot be read.
        """
        session = await self._sessions.whole(session_id, node_id)
        nodes, count = _turn(session, node_id)
        model = await self._maker_of(session, *nodes)
        async with refusing(self._supervisor, model):
            path = session.tree.path(node_id)
            check_tokens(model, session, path)
            adapted = await self._adapters.adapted(session, model)
            ids = session.path_ids(path)
            places = range(max(len(ids) - count - 1, 0), len(ids) - 1)
            leads = np.full(count, UNKNOWN_LAYER, np.int32)
            if places:
                run = await model.lens(
                    ids, places, top_k=0, adapters=adapted.adapters, on_progress=lambda p: on_progress(p.done, p.total)
                )
                leads[count - len(places) :] = run.leads_from()
            return TurnDepth(leads, model.info.layers)

    async def preview(self, session_id: int, node_id: int, index: int, token_id: int, most: int) -> Sequence[bytes]:
        """At most `most` likeliest tokens after `token_id` at a place; saved nowhere, and answers go first.

        Raises:
            Refusal: No model can be loaded, or it fails.
        """
        session, node, offset = await self._token(session_id, node_id, index)
        model = await loaded_model(self._supervisor)
        ids = [*ids_before(session, node, offset), token_id]
        words: list[bytes] = []
        async with self._query(model, session, node) as adapted:
            while len(words) < most and not model.is_eos(ids[-1]) and len(ids) < model.info.context_length:
                top = await model.top_logprobs(ids, 1, adapters=adapted.adapters)
                ids.append(int(top.ids[0]))
                words.append(b"" if model.is_eos(ids[-1]) else model.decode_token(ids[-1]))
        return [word for word in words if word]

    async def _token(self, session_id: int, node_id: int, index: int) -> tuple[WholeSession, NodeRow, int]:
        """The session, and the node and the offset of token `index` of a turn.

        Raises:
            Refusal: There is no such token.
        """
        session = await self._sessions.whole(session_id, node_id)
        place = session.locate(node_id, index)
        if place is None:
            raise Refusal(translate("Workbench", GONE))
        return session, *place

    async def _maker_of(self, session: WholeSession, *nodes: NodeRow) -> LanguageModel:
        """The running model, if it generated the tokens of all these nodes.

        Raises:
            Refusal: No model runs, or another one wrote them.
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
                raise Refusal(words.format(maker, in_use(session, model, made_of(node))))
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
        """The fingerprint of the model under a session's adapters; "" if these cannot be used."""
        try:
            return (await self._adapters.adapted(session, model)).fingerprint
        except RuntimeFault:
            return ""

    @asynccontextmanager
    async def _query(self, model: LanguageModel, session: WholeSession, node: NodeRow) -> AsyncIterator[AdaptedModel]:
        """The model under the session's adapters, for a query about a turn.

        Raises:
            Refusal: Another tokenizer wrote the path, or the model or an adapter cannot be used.
        """
        async with refusing(self._supervisor, model):
            check_tokens(model, session, session.tree.path(node.id))
            yield await self._adapters.adapted(session, model)

    def _settings(self, held: object) -> SamplingOptions | None:
        """The stored sampling options, without names that only a newer version knows; None if they are not valid."""
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
    """The nodes of the turn that `node_id` ends, and the number of its tokens on the path.

    Raises:
        Refusal: There is no such turn, or it has no tokens.
    """
    turns = session.tree.turns(node_id)
    segments = turns[-1].segments if turns else ()
    count = len(session.path_ids(segments))
    if not count:
        raise Refusal(translate("Workbench", GONE))
    return [segment.node for segment in segments], count


def _maker(made: Mapping[str, Any]) -> str:
    name = made.get("model")
    return with_weights(str(name), made.get("quantisation")) if name else ""


def in_use(session: WholeSession, model: LanguageModel, made: Mapping[str, Any]) -> str:
    """The name of the model in use for a message about another one; with its adapters if only these differ."""
    if made.get("base") != model.info.kv_fingerprint:
        return spoken_name(model.info)
    choices = session.values.adapters if session.values is not None else ()
    uses = [(choice.name, choice.scale) for choice in choices if choice.on] if choices else model.info.lora_stack
    return translate("Workbench", "{0} with {1}").format(spoken_name(model.info), stack_words(uses))


def ids_before(session: WholeSession, node: NodeRow, offset: int) -> list[int]:
    """The ids of the path before token `offset` of a node."""
    path = session.tree.path(node.id)
    own: list[int] = session.runs.get(node.id, EMPTY).ids.tolist()
    return session.path_ids(path[:-1]) + own[:offset]
