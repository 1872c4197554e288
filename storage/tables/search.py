"""Full-text search over titles and every branch's text.

A session is found when each word of the query is in its title or anywhere in its tree; words are found by their beginning,
accents and case do not matter. Scripts that write without spaces are indexed sign by sign, so that any part of a Chinese
sentence is found, also one or two characters (SQLite's trigram tokenizer needs three); emoji are indexed by code point.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import sqlite_utils

_SPACELESS: Final = (
    r"[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}"
    r"\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}]"
)
_EMOJI: Final = r"(?=[^\x00-\x7f])[\p{So}\p{Emoji_Presentation}\p{Emoji_Modifier}]"
_WORD: Final = r"[\p{L}\p{N}]"


def index_node(db: sqlite_utils.Database, session_id: int, node_id: int, text: str) -> None:
    """Makes `text` what is found for the node."""
    _index(db, session_id, node_id, text)


def index_fresh(db: sqlite_utils.Database, session_id: int, node_id: int, text: str) -> None:
    """The same for a node that was added just now, which has nothing to be replaced."""
    db.execute("INSERT INTO search (rowid, body, session_id) VALUES (?, ?, ?)", [node_id, spaced(text), session_id])


def index_title(db: sqlite_utils.Database, session_id: int, title: str) -> None:
    """Makes `title` what is found for the session itself."""
    _index(db, session_id, -session_id, title)


def forget_session(db: sqlite_utils.Database, session_id: int) -> None:
    """Takes a session out of the index; before its nodes are deleted."""
    db.execute("DELETE FROM search WHERE rowid = ?", [-session_id])
    db.execute("DELETE FROM search WHERE rowid IN (SELECT id FROM nodes WHERE session_id = ?)", [session_id])


def find(db: sqlite_utils.Database, query: str) -> set[int]:
    """The ids of the sessions that match every word of `query`; empty where none does."""
    found: set[int] | None = None
    for word in query.split():
        hits = _with_word(db, word)
        found = hits if found is None else found & hits
    return found or set()


def spaced(text: str) -> str:
    """`text` as it is indexed: signs of spaceless scripts apart, emoji as words."""
    return str(_compiled(_EMOJI).sub(lambda m: f" u{ord(m[0]):x} ", _compiled(_SPACELESS).sub(r" \g<0> ", text)))


@cache
def _compiled(pattern: str) -> Any:
    """A pattern of `regex`, which is loaded with the first text that is indexed or looked for: the window opens without it."""
    import regex  # type: ignore[import-untyped]  # ships no types; re has no \p{...}

    return regex.compile(pattern)


def _with_word(db: sqlite_utils.Database, word: str) -> set[int]:
    indexed = spaced(word)
    if _compiled(_WORD).search(indexed):
        phrase = '"' + indexed.replace('"', '""') + '"*'  # quoted: no operator of FTS5 can be meant
        rows = db.execute("SELECT DISTINCT session_id FROM search WHERE search MATCH ?", [phrase])
    else:  # nothing but signs, such as "->": rare enough to look through everything
        rows = db.execute("SELECT DISTINCT session_id FROM search WHERE instr(body, ?)", [word])
    return {int(row[0]) for row in rows}


def _index(db: sqlite_utils.Database, session_id: int, rowid: int, text: str) -> None:
    db.execute("DELETE FROM search WHERE rowid = ?", [rowid])
    if text:
        db.execute("INSERT INTO search (rowid, body, session_id) VALUES (?, ?, ?)", [rowid, spaced(text), session_id])
