"""Questions to a hub that fetch nothing: what it finds, and whose a token is. Nothing here imports a network library."""

from __future__ import annotations

from runtime.errors import DownloadError, InvalidRequestError
from runtime.hub.fetching import answers
from runtime.hub.found import HubModel
from runtime.hub.said import Asked

MOST_FOUND = 100
_LONGEST_QUERY = 200  # characters


def search_models(query: str, limit: int = 20) -> tuple[HubModel, ...]:
    """Text models that the hub finds, the most fetched first. One question, when it is called and never else. Blocks.

    Args:
        query: Words, or a part of a name.
        limit: Of them, at most; from 1 to `MOST_FOUND`.

    Raises:
        InvalidRequestError: No words, too long ones, or no such limit.
        DownloadError: No network, a hub that refuses, is busy, or answers what nobody can read.
    """
    words = " ".join(query.split())
    if not words or len(words) > _LONGEST_QUERY or not words.isprintable():
        raise InvalidRequestError(f"a search needs words, at most {_LONGEST_QUERY} characters of them")
    if not 1 <= limit <= MOST_FOUND:
        raise InvalidRequestError(f"a search finds from 1 to {MOST_FOUND} models, not {limit}")
    for said in answers(Asked("search", query=words, limit=limit)):
        if said.found is not None:
            return said.found
    raise DownloadError("the search ended without an answer")


def token_owner(token: str = "") -> str:
    """Asks the hub whose a token is. Blocks.

    Args:
        token: The one that is kept, or that of the environment, by default.

    Raises:
        DownloadError: There is none, the hub does not know it ("denied"), or it cannot be asked.
    """
    for said in answers(Asked("who", token=token.strip())):
        if said.name:
            return said.name
    raise DownloadError("the hub gave no answer")
