"""Pictures of the full-window tree, of a session with many turns and branches in several scripts."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from app.workbench import AppWorkbench
from runtime import Origin, TokenRun
from storage import NewChunk, NewNode, SessionStore
from tests.tools.more_scenes import keep, settled
from ui import MainWindow

TURNS, BRANCHES = 300, 60
MODEL = "0" * 16
ASKED = (
    "Write one sentence about a cat and the sea.", "Now let it rain.", "And at night? 🌧️", "请用一句话描述大海。",
    "Translate: مرحبا بالعالم — שלום עולם", "What would a lighthouse say?", "Shorter, please.", "```python\nprint('sea')\n```",
)  # fmt: skip
SAID = (
    "A majestic cat basking in the sunlight, its sleek coat a testament to the fierce tide that raised it.",
    "The sea, bathed in the soft light of the rain, held its breath for a moment of pure bliss.",
    "Night came down like a tired gull 🐈‍⬛, and the harbour lamps counted the waves one by one.",
    "海浪轻轻拍打着礁石，一只猫静静地望着远方的灯塔。",
    "Hello, world — مرحبا، أيها البحر — said the cat, who had never learned to whisper.",
    "Stay away from me, I am warm and I am made of rocks.",
    "Cat. Sea. Salt.",
    "**Rain** falls\n\n- on the boats\n- on the nets\n- on the cat",
)


async def save_tree(store: SessionStore, turns: int = TURNS, branches: int = BRANCHES) -> int:
    """A session whose answers are often regenerated, or branched in the middle; the first path is the shown one."""
    rng = np.random.default_rng(4)
    session_id = await store.create_session("A cat and the sea")
    paths: list[tuple[int, int]] = []  # node, its tokens: answers from which a branch may leave
    tip, made, left = None, 0, 1
    while made < turns:
        if len(paths) > 2 and left <= branches * made // turns:
            at, tokens = paths[int(rng.integers(max(len(paths) - 12, 0), len(paths)))]
            cut = int(rng.integers(2, max(tokens, 3)))
            run = _run(" " + SAID[int(rng.integers(len(SAID)))], rng)
            text = (await store.load_nodes(session_id, [at]))[0].text
            held = _run(text, np.random.default_rng(0))
            node = NewNode(
                session_id, at, "assistant", run.text, at_token=cut, at_byte=len(held[:cut].text.encode()), turn_start=False,
                stats=_made(run),
            )  # fmt: skip
            await store.add_node(node, NewChunk(MODEL, 0, len(run), run.to_columns()))
            made, left = made + 1, left + 1
            continue
        asked = _run(ASKED[made % len(ASKED)], rng)
        question = NewNode(session_id, tip, "user", asked.text)
        tip = await store.add_node(question, NewChunk(MODEL, 0, len(asked), asked.to_columns()))
        versions = 2 if made % 7 == 3 else 1
        made, left = made + 1 + versions, left + versions - 1
        for _version in range(versions):
            run = _run(SAID[int(rng.integers(len(SAID)))], rng)
            new = NewNode(session_id, tip, "assistant", run.text, stats=_made(run))
            answer = await store.add_node(new, NewChunk(MODEL, 0, len(run), run.to_columns()), current=True)
        tip = answer
        paths.append((answer, len(run)))
    return session_id


def _made(run: TokenRun) -> dict[str, object]:
    return {"logprob": float(run.logprob.sum()), "generated": len(run), "reused": 0, "computed": 1}


def _run(text: str, rng: np.random.Generator) -> TokenRun:
    texts = re.findall(r"\s*[A-Za-z']+|\s*\S|\s+", text)
    n = len(texts)
    plain = TokenRun.unscored(range(n), [each.encode() for each in texts], texts, Origin.SAMPLED)
    bits = rng.exponential(1.6, n).astype(np.float32)
    return replace(plain, logprob=-bits * np.float32(np.log(2)), rank=np.maximum(bits.astype(np.int32), 1))


async def full_tree(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """The tree of a long session."""
    await _opened(window)
    keep(window, folder / f"{name}.png")


async def full_tree_alone(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """Show only what follows a row, two bookmarks, two rows to compare, a name."""
    await _opened(window)
    view, control = window.parts.tree.view, Qt.KeyboardModifier.ControlModifier
    rows = view.rows.all
    start = next(place for place, row in enumerate(rows) if place > len(rows) // 2 and row.ways > 1)
    view.focus_row(rows[start].key)
    QTest.keyClick(view, Qt.Key.Key_Right, Qt.KeyboardModifier.AltModifier)
    for keys in ("b", "dd ", "dddb", "ddd "):
        for key in keys:
            if key == "b":
                QTest.keyClick(view, Qt.Key.Key_B, control)
                await asyncio.sleep(0.4)
            else:
                QTest.keyClick(view, Qt.Key.Key_Down if key == "d" else Qt.Key.Key_Space)
    assert view.row is not None
    head = view.rows.head(view.row)
    window.controller.tree.rename(head.node_id, head.start, "", "the quiet one")
    await asyncio.sleep(0.6)
    keep(window, folder / f"{name}.png")


async def full_tree_narrow(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """The same in a small window, with a search."""
    window.resize(900, 640)
    await _opened(window)
    view = window.parts.tree.view
    QTest.keyClick(view, Qt.Key.Key_C)
    QTest.keyClicks(window.parts.tree.finder.field, "at")
    await asyncio.sleep(0.6)
    keep(window, folder / f"{name}.png")


async def _opened(window: MainWindow) -> None:
    row = next(row for row in window.controller.sessions.rows.values() if not row.is_sample)
    window.controller.open(row.session_id)
    for _attempt in range(200):
        await asyncio.sleep(0.02)
        if window.controller.is_shown(row.session_id):
            break
    await settled(window)
    window.acts.tree.trigger()
    for _attempt in range(200):
        await asyncio.sleep(0.02)
        if window.parts.tree.isVisible():
            break
    await asyncio.sleep(0.4)
