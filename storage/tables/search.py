"""Full-text search over titles and the texts of all branches.

A session matches if each word of the query is in its title or anywhere in its tree. Words match by prefix, regardless of
accents and case. Scripts without spaces are indexed by character, so that any part of a Chinese sentence is found, even of one
or two characters (SQLite's trigram tokenizer needs three); emoji are indexed by code point.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import sqlite_utils

from storage.rows import SearchHit

MOST_HITS: Final = 100  # sessions with a place in the text
_BETWEEN: Final = r"[*_~`]*\s+[*_~`]*"  # separates adjacent words in Markdown
_AROUND: Final = 80  # characters before and behind the words
_MOST_SEARCHED: Final = 200_000  # characters of a text

_SPACELESS: Final = (
    r"[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}"
    r"\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}]"
)
_EMOJI: Final = r"(?=[^\x00-\x7f])[\p{So}\p{Emoji_Presentation}\p{Emoji_Modifier}]"
_WORD: Final = r"[\p{L}\p{N}]"


def index_node(db: sqlite_utils.Database, session_id: int, node_id: int, text: str) -> None:
    """Sets the indexed text of a node."""
    db.execute("DELETE FROM search WHERE rowid = ?", [node_id])
    if text:
        index_fresh(db, session_id, node_id, text)


def index_fresh(db: sqlite_utils.Database, session_id: int, node_id: int, text: str) -> None:
    """Indexes the text of a new node, without removing an old one."""
    db.execute("INSERT INTO search (rowid, body, session_id) VALUES (?, ?, ?)", [node_id, spaced(text), session_id])


def index_title(db: sqlite_utils.Database, session_id: int, title: str) -> None:
    """Sets the indexed title of a session."""
    index_node(db, session_id, -session_id, title)


def forget_session(db: sqlite_utils.Database, session_id: int) -> None:
    """Removes a session from the index, before its nodes are deleted."""
    db.execute("DELETE FROM search WHERE rowid = ?", [-session_id])
    db.execute("DELETE FROM search WHERE rowid IN (SELECT id FROM nodes WHERE session_id = ?)", [session_id])


def find(db: sqlite_utils.Database, query: str) -> set[int]:
    """The ids of the sessions that match every word of `query`."""
    matches = [_with_word(db, word) for word in query.split()]
    return set.intersection(*matches) if matches else set()


def hits(db: sqlite_utils.Database, query: str) -> dict[int, SearchHit]:
    """The latest node with all words of `query`, else with its first word, by session; at most `MOST_HITS` sessions."""
    words = [word for word in query.split() if word[:1] != "#" and _compiled(_WORD).search(spaced(word))]
    if not words:
        return {}
    nodes: dict[int, int] = {}
    for phrase in (" ".join(map(_phrase, words)), _phrase(words[0])):
        rows = db.execute(
            "SELECT session_id, max(rowid) FROM search WHERE search MATCH ? AND rowid > 0 GROUP BY session_id", [phrase]
        )
        nodes = {int(session): int(node) for session, node in rows} | nodes
    latest = sorted(nodes.items(), key=lambda each: -each[1])[:MOST_HITS]
    ids = json.dumps([node for _session, node in latest])
    texts = dict(
        db.execute(
            "SELECT id, substr(text, 1, ?) FROM nodes WHERE id IN (SELECT value FROM json_each(?))", [_MOST_SEARCHED, ids]
        )
    )
    found = {session: _hit(node, texts.get(node, ""), query, words) for session, node in latest}
    return {session: hit for session, hit in found.items() if hit is not None}


def _hit(node_id: int, text: str, query: str, words: Sequence[str]) -> SearchHit | None:
    plain = _folded(text)
    for wanted in (query.strip(), *words):
        pattern = _BETWEEN.join(map(re.escape, _folded(wanted).split()))
        found = re.search(rf"(?<!\w){pattern}", plain) or re.search(pattern, plain)
        if found is not None:
            start, stop = found.span()
            return SearchHit(node_id, text[max(start - _AROUND, 0) : start], text[start:stop], text[stop : stop + _AROUND])
    return None


def _folded(text: str) -> str:
    """The text without accents and in lower case, character by character."""
    return text.lower() if text.isascii() else "".join(unicodedata.normalize("NFD", sign)[0].lower()[:1] for sign in text)


def _phrase(word: str) -> str:
    """A prefix query for a word, quoted so that FTS5 sees no operator in it."""
    return '"' + spaced(word).replace('"', '""') + '"*'


def spaced(text: str) -> str:
    """The indexed form of `text`: characters of spaceless scripts separated, emoji as words."""
    return str(_compiled(_EMOJI).sub(lambda m: f" u{ord(m[0]):x} ", _compiled(_SPACELESS).sub(r" \g<0> ", text)))


@cache
def _compiled(pattern: str) -> Any:
    """A compiled pattern of `regex`, a library that is imported on first use: the window opens without it."""
    import regex  # type: ignore[import-untyped]  # ships no types; re has no \p{...}

    return regex.compile(pattern)


def _with_word(db: sqlite_utils.Database, word: str) -> set[int]:
    if _compiled(_WORD).search(spaced(word)):
        rows = db.execute("SELECT DISTINCT session_id FROM search WHERE search MATCH ?", [_phrase(word)])
    else:  # a word without letters or digits, such as "->": rare enough for a full scan
        rows = db.execute("SELECT DISTINCT session_id FROM search WHERE instr(body, ?)", [word])
    return {int(row[0]) for row in rows}
