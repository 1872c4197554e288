"""Views for other tools: the numbers by plain SQL, from any SQLite shell.

- `turns`: one row per run of tokens (a turn is a run with `turn_start` = 1 and the runs that continue it).
- `tokens`: one row per token and model: text, log-probability, surprisal. `own` = 1: the model that made or first read it.
- `branches`: one row per tip and run on the path to it, the tip first; of each run the first `upto` tokens belong to the
  branch (NULL: all).

Sessions in the trash are left out. The app itself reads no view: its connection distrusts functions in schemas, and some
SQLite versions then refuse `json_extract` in a view. The mean surprisal of every answer::

    SELECT node_id, avg(surprisal_bits) FROM tokens JOIN turns USING (node_id)
    WHERE role = 'assistant' AND own GROUP BY node_id;
"""

from __future__ import annotations

from typing import Final

MAX_DEPTH: Final = 100_000  # runs on one path; a cycle in a damaged tree ends here

_TURNS = """
CREATE VIEW turns AS
SELECT n.session_id, s.title, n.id AS node_id, n.parent_id, n.at_token, n.seq, n.role, n.turn_start, n.text,
       n.status, n.finish_reason, n.token_count, n.kv_fingerprint, n.stats
FROM nodes n JOIN sessions s ON s.id = n.session_id
WHERE s.trashed IS NULL AND NOT s.importing
"""

_TOKENS = """
CREATE VIEW tokens AS
SELECT n.session_id, c.node_id, c.kv_fingerprint, c.kv_fingerprint = n.kv_fingerprint AS own,
       c.first + t.key AS position,
       json_extract(t.value, '$[0]') AS token_id,
       json_extract(t.value, '$[1]') AS text,
       json_extract(t.value, '$[2]') AS logprob,
       json_extract(t.value, '$[3]') AS rank,
       json_extract(t.value, '$[4]') AS entropy,
       -json_extract(t.value, '$[2]') / 0.6931471805599453 AS surprisal_bits
FROM token_chunks c
JOIN nodes n ON n.id = c.node_id
JOIN sessions s ON s.id = n.session_id
JOIN json_each(c.summary) t
WHERE s.trashed IS NULL AND NOT s.importing
  AND NOT EXISTS (
    SELECT 1 FROM token_chunks newer
    WHERE newer.node_id = c.node_id AND newer.kv_fingerprint = c.kv_fingerprint AND newer.id > c.id
      AND c.first + t.key >= newer.first AND c.first + t.key < newer.first + newer.count
  )
"""

_BRANCHES = f"""
CREATE VIEW branches AS
WITH RECURSIVE path (session_id, tip_id, node_id, upto, above, steps) AS (
    SELECT n.session_id, n.id, n.id, NULL, n.parent_id, 0
    FROM nodes n JOIN sessions s ON s.id = n.session_id
    WHERE s.trashed IS NULL AND NOT s.importing
      AND NOT EXISTS (SELECT 1 FROM nodes child WHERE child.parent_id = n.id AND child.at_end)
    UNION
    SELECT path.session_id, path.tip_id, n.id, below.at_token, n.parent_id, path.steps + 1
    FROM path JOIN nodes n ON n.id = path.above JOIN nodes below ON below.id = path.node_id
    WHERE path.steps < {MAX_DEPTH}
)
SELECT session_id, tip_id, node_id, upto, steps AS steps_from_tip FROM path
"""  # noqa: S608  # our own constant

VIEWS: Final = {"turns": _TURNS, "tokens": _TOKENS, "branches": _BRANCHES}
