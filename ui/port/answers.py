"""How answers are asked for, and how one was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Setting:
    """An option that held, and who said so: call, session, preset, model or default."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Made:
    """One answer's making."""

    facts: Mapping[str, str]  # name and value: model, engine, seed, counts, times, its end
    settings: tuple[Setting, ...]  # every option; those that somebody chose first


class AnswerCommands(Protocol):
    """Messages and answers. Every coroutine may raise `Refusal`; tokens come as `TokensArrived`."""

    async def send(self, session_id: int, text: str, replaces: int | None = None) -> None:
        """Saves the user's turn, then streams an answer; returns when the answer has ended.

        With `replaces`, the turn stands beside that earlier user turn as another version of it (edit). So does a message
        after one that did not fit into the context. Beside a turn of the model's, the text is another version of that one;
        nothing is streamed, and `continue_turn` goes on from it.
        """

    async def open_as_text(self, session_id: int, node_id: int) -> None:
        """The path to a turn once more, as another beginning without tokens, which any model can go on from.

        Where it ends with a question, an answer is streamed.
        """

    async def branch(self, session_id: int, node_id: int, index: int, token_id: int) -> None:
        """Makes a sibling that replaces token `index` of the turn (an index into its run) by `token_id` and streams on."""

    async def regenerate(self, session_id: int, node_id: int) -> None:
        """Another answer beside the model's turn `node_id`."""

    async def regenerate_exactly(self, session_id: int, node_id: int) -> None:
        """The model's turn once more beside it, with the options, seed and model that made it.

        Its note says whether the two are the same, token for token, or where they part.
        """

    async def continue_turn(self, session_id: int, node_id: int) -> None:
        """Goes on with an answer that was stopped."""

    def stop(self, session_id: int) -> None:
        """Stops the stream of a session; what arrived is kept."""

    def how_made(self, session_id: int, node_id: int) -> Made | None:
        """How an answer was made; None where nobody kept it."""

    def token_text(self, session_id: int, token_ids: Sequence[int]) -> Sequence[bytes]:
        """The bytes of any token (alternatives), without the engine; empty where the vocabulary is not known."""
