"""Where an answer can be left: in front of one of its tokens, or at its end."""

from __future__ import annotations

from dataclasses import replace

from app.workbench.refusals import GONE
from app.workbench.tree.path_tokens import content_of
from app.workbench.tree.runs import EMPTY, began
from app.workbench.tree.session import WholeSession
from runtime import Finish, Origin
from storage import NewNode
from ui import Refusal, translate


def point(session: WholeSession, node_id: int, index: int | None) -> NewNode:
    """A continuation of an answer in front of token `index`, or of its end, as a node to be added.

    Raises:
        Refusal: It cannot be continued there.
    """
    if index is not None:
        return beside(session, node_id, index)
    node = session.tree.nodes.get(node_id)
    if node is None:
        raise Refusal(translate("Workbench", GONE))
    run = session.runs.get(node_id, EMPTY)
    if node.role != "assistant" or not began(run):
        raise Refusal(translate("Workbench", "there is no answer to go on from; click a token of one, and go on from there"))
    if Finish(int(run.finish[-1])).by_eos:
        raise Refusal(
            translate(
                "Workbench", "the answer is complete; the model ended it itself. Click one of its tokens to go on from there"
            )
        )
    return NewNode(session.id, node_id, "assistant", turn_start=False, status="open")


def beside(session: WholeSession, node_id: int, index: int) -> NewNode:
    """A run that leaves an answer in front of token `index`.

    Raises:
        Refusal: There is no such token, or it is not the answer's own.
    """
    place = session.locate(node_id, index)
    if place is None:
        raise Refusal(translate("Workbench", GONE))
    node, offset = place
    run = session.runs.get(node.id, EMPTY)
    if node.role != "assistant":
        raise Refusal(translate("Workbench", "this is your own text; edit the message to change it"))
    if offset >= len(run) or int(run.origin[offset]) == Origin.TEMPLATE:
        raise Refusal(translate("Workbench", "this token belongs to the template, not to the answer"))
    byte = len(content_of(run[:offset]).encode())
    new = NewNode(session.id, node.id, "assistant", at_token=offset, at_byte=byte, turn_start=False, status="open")
    if offset == 0 and not node.turn_start:  # beside the run, not inside it
        return replace(new, parent_id=node.parent_id, at_token=node.at_token, at_byte=node.at_byte)
    return new
