"""Trees without a store."""

from __future__ import annotations

from typing import Any

from app.workbench.tree.tree import Tree
from storage import NodeRow


def node(node_id: int, parent: int | None, role: str = "assistant", text: str = "", **values: Any) -> NodeRow:
    """A finished node of three tokens."""
    settings: dict[str, Any] = {
        "at_token": None,
        "at_byte": None,
        "turn_start": True,
        "status": "complete",
        "finish_reason": "eos",
        "token_count": 3,
        "stats": {},
        "seq": node_id,
        "kv_fingerprint": "m",
    }
    return NodeRow(id=node_id, session_id=1, parent_id=parent, role=role, text=text, **{**settings, **values})


def run(node_id: int, parent: int, at: int | None = None, byte: int | None = None, text: str = "", **values: Any) -> NodeRow:
    """A run that continues its parent's turn."""
    return node(node_id, parent, text=text, at_token=at, at_byte=byte, turn_start=False, **values)


def chat(*more: NodeRow) -> Tree:
    """A system prompt, a question, an answer, and further nodes under them."""
    return Tree([node(1, None, "system"), node(2, 1, "user", "where to?"), node(3, 2, text="one two three"), *more])
