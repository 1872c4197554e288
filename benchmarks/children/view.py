"""Drives the window's widgets without a screen, in its own process, and prints the milliseconds of each frame as one JSON line.

`python -m benchmarks.children.view TOKENS SESSIONS TURNS`: streams TOKENS tokens, once in paragraphs and once in a single one.
In the text with paragraphs, it scrolls to random places, moves the mouse and changes the colours. Then it moves a slider of
*Why*, fills a list of SESSIONS sessions, and opens the full-window tree of a session of TURNS turns.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence

os.environ["QT_QPA_PLATFORM"] = "offscreen"  # before PySide6 is imported

import numpy as np
from PySide6.QtCore import QEvent, QPointF, Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtWidgets import QAbstractScrollArea, QApplication

from app.sample import recorded, run_from
from app.workbench.tree.tree import Tree
from app.workbench.tree.turn_rows import turn_rows
from benchmarks.children.child import resident_bytes
from runtime import Origin, SamplingOptions, TokenRun
from storage import NodeColumns, NodeRow
from ui import (
    Drawing,
    Inspector,
    Measure,
    RowText,
    Scheme,
    SessionPanel,
    SessionSummary,
    SessionView,
    Spot,
    TranscriptView,
    TreePanel,
    TurnStatus,
    TurnView,
    apply_theme,
)

FRAME_TOKENS = 5  # tokens per frame: 300 a second at 60 frames
TOP_K = 10
VOCABULARY = 3000  # words
PARAGRAPH = 120  # tokens of a paragraph
JUMPS, MOVES, SWITCHES = 300, 2000, 12  # numbers of scrolls, mouse moves and changes of colour
MOVED, ROW_SIZE = 100, 50_000  # moves of a slider; entries of the row of log-probabilities
OPENED, ROW_TOKENS = 9, 60  # times the tree opens; tokens of a row
READ_AT_FIRST = 80  # rows whose texts are read before the tree opens
WIDTH, HEIGHT = 780, 690
NODE = 1

Frames = list[float]  # milliseconds


def main() -> None:
    """Measures, and prints the findings."""
    tokens, sessions, turns = map(int, sys.argv[1:4])
    if tokens < 1:
        sys.exit("at least one token")
    application = QApplication(["elsewise"])
    apply_theme(application, Scheme.LIGHT)
    found: dict[str, object] = {}
    for name, paragraph in (("paragraphs", PARAGRAPH), ("one", tokens + 1)):
        runs = made_runs(tokens, paragraph)
        view = empty_view()
        gc.collect()
        before = resident_bytes()
        found[f"append_{name}"] = append(view, runs)
        del runs
        gc.collect()
        found[f"rss_{name}"] = resident_bytes() - before
        if name == "paragraphs":
            found["scroll"] = scroll(view.tokens, JUMPS)
            found["move"] = moves(view)
            found["switch"] = switches(view)
        view.deleteLater()
        application.processEvents()
    found["slider_head"], found["slider_row"] = sliders()
    found["list_show"], found["list_scroll"] = session_list(sessions)
    found["tree_show"] = whole_tree(turns)
    print(json.dumps(found))


def made_runs(tokens: int, paragraph: int) -> list[TokenRun]:
    """A stream as one run per frame: words with scores and alternatives, paragraphs separated by newlines."""
    rng = np.random.default_rng(8)
    words = [" " + "".join(chr(97 + c) for c in rng.integers(26, size=n)) for n in rng.integers(2, 9, size=VOCABULARY)]
    data = [word.encode() for word in words]
    runs = []
    for start in range(0, tokens, FRAME_TOKENS):
        n = min(FRAME_TOKENS, tokens - start)
        ids = rng.integers(VOCABULARY, size=n)
        texts = [words[i] for i in ids]
        held = [data[i] for i in ids]
        if start // paragraph != (start + n) // paragraph:
            texts[-1], held[-1] = "\n\n", b"\n\n"
        top = -np.sort(rng.exponential(2.0, (n, TOP_K))).astype(np.float32)
        runs.append(
            TokenRun(
                ids=ids.astype(np.int32),
                token_bytes=tuple(held),
                texts=tuple(texts),
                logprob=-rng.exponential(1.4, n).astype(np.float32),  # mean 1.4 nats, about two bits per token
                rank=rng.geometric(0.25, n).astype(np.int32),  # one in twenty beyond the tenth
                entropy=rng.exponential(2.0, n).astype(np.float32),
                top_ids=rng.integers(VOCABULARY, size=(n, TOP_K)).astype(np.int32),
                top_logprobs=top,
                covered_mass=np.full(n, 0.9, np.float32),
                origin=np.full(n, int(Origin.SAMPLED), np.uint8),
                finish=np.zeros(n, np.uint8),
                draw=np.full(n, 0.5, np.float32),
            )
        )
    return runs


def empty_view() -> TranscriptView:
    """A transcript on the screen with an empty answer that streams."""
    view = TranscriptView()
    view.resize(WIDTH, HEIGHT)
    view.show()
    run = TokenRun.unscored([], [], [], Origin.SAMPLED)
    begun = TurnView(NODE, "assistant", run, TurnStatus.STREAMING, (NODE,))
    view.set_session(SessionView(1, "bench", (begun,), ()))
    QApplication.processEvents()
    return view


def append(view: TranscriptView, runs: Sequence[TokenRun]) -> Frames:
    """Appends the runs; a frame takes in, lays out and paints one run."""
    return [frame(view.append_tokens, NODE, run) for run in runs]


def scroll(area: QAbstractScrollArea, jumps: int) -> Frames:
    """Scrolls to random places and paints each."""
    bar = area.verticalScrollBar()
    places = np.random.default_rng(3).integers(max(bar.maximum(), 1), size=jumps).tolist()
    return [frame(bar.setValue, place) for place in places]


def moves(view: TranscriptView) -> Frames:
    """Moves the mouse to random places; a frame finds the token under it and updates the view."""
    viewport = view.tokens.viewport()
    spots = np.random.default_rng(4).random((MOVES, 2)) * (viewport.width(), viewport.height())
    frames = []
    for x, y in spots.tolist():
        at = QPointF(x, y)
        event = QMouseEvent(
            QEvent.Type.MouseMove, at, at, Qt.MouseButton.NoButton, Qt.MouseButton.NoButton, Qt.KeyboardModifier.NoModifier
        )
        frames.append(frame(QApplication.sendEvent, viewport, event))
    return frames


def switches(view: TranscriptView) -> Frames:
    """Changes the measure that colours the tokens, and paints."""
    chosen = [list(Measure)[i % len(Measure)] for i in range(1, SWITCHES + 1)]
    return [frame(view.colours.colour_by, measure) for measure in chosen]


def session_list(sessions: int) -> tuple[Frames, Frames]:
    """Fills and paints the session list (one frame), then scrolls to random places."""
    now = time.time()
    rows = [
        SessionSummary(i, f"Session {i}: what was said", now - 3600.0 * i, 1 + i % 4, i < 5, False) for i in range(sessions)
    ]
    panel = SessionPanel()
    panel.resize(248, HEIGHT)
    panel.show()
    shown = frame(panel.show_sessions, rows, now)
    return [shown], scroll(panel.view, JUMPS)


def whole_tree(turns: int) -> Frames:
    """Opens the tree several times; a frame finds its rows, shows them and paints their coloured texts."""
    tree, tip = made_tree(turns)
    run = TokenRun.concat(made_runs(ROW_TOKENS, PARAGRAPH))
    shown: Frames = []
    for _ in range(OPENED):
        panel = TreePanel()
        panel.resize(1110, HEIGHT)
        rows = panel.view.rows
        rows.texts_wanted.connect(
            lambda asked, panel=panel: panel.view.rows.take_texts({row.key: RowText(run, None) for row in asked})
        )

        def show(panel: TreePanel = panel) -> None:
            found = turn_rows(tree, tip)
            panel.show_rows(found, {row.key: RowText(run, None) for row in found[-READ_AT_FIRST:]}, afresh=True)
            panel.show()

        gc.collect()
        shown.append(frame(show))
        panel.close()  # otherwise the next one repaints it as an inactive window
        panel.deleteLater()
    return shown


def made_tree(turns: int) -> tuple[Tree, int]:
    """A tree of questions and answers, each 25th with a branch in its middle, before its texts are read; and its tip."""
    columns, tip, number, answers = NodeColumns(1), None, 0, 0
    heads = []
    while number < turns:
        answers += 1
        for role, at in (("user", None), ("assistant", None), *([("assistant", 7)] if answers % 25 == 0 else [])):
            number += 1
            node = NodeRow(
                id=number, session_id=1, parent_id=tip, at_token=at, at_byte=None if at is None else 5 * at, role=role,
                turn_start=at is None, text="a few words that are read where a branch begins", status="complete",
                finish_reason="eos", token_count=20, stats={}, seq=number, kv_fingerprint="bench",
            )  # fmt: skip
            columns.append(node)
            if at is not None or number == 1:
                heads.append(node)
            else:
                tip = number
    tree = Tree(columns)
    for node in heads:
        tree.put(node)
    return tree, tip or 0


def sliders() -> tuple[Frames, Frames]:
    """Moves a slider of *Why* and updates its display: for the stored alternatives of a token, and for a whole row."""
    answer = next(run_from(node["tokens"]) for node in recorded()["nodes"] if node["role"] == "assistant")
    index = next(i for i, origin in enumerate(answer.origin.tolist()) if origin == Origin.SAMPLED)
    settings = SamplingOptions(temperature=0.8, top_p=0.95, min_p=0.05)
    inspector = Inspector()
    inspector.resize(332, HEIGHT)
    inspector.show()
    inspector.tabs[-1].click()
    inspector.show_spot(Spot(NODE, index, answer.record(index), None), lambda ids: [b"word"] * len(ids), can_choose=True)
    drawing = Drawing(settings, 11, 0, answer.ids[:index], "bench", "", can_ask=True)
    inspector.why.show_drawing(NODE, index, drawing)
    places = np.random.default_rng(5).integers(100, 1000, size=MOVED).tolist()
    slider = inspector.why.dials.rows["top_p"].slider
    head = [frame(slider.setValue, place) for place in places]
    row = np.random.default_rng(6).normal(size=ROW_SIZE) * 3
    row -= np.log(np.exp(row).sum())
    inspector.why.show_row(NODE, index, row.astype(np.float32))
    return head, [frame(slider.setValue, place) for place in reversed(places)]


def frame(act: Callable[..., object], *given: object) -> float:
    """Milliseconds of an act and of the events after it: pending layout and repaints."""
    started = time.perf_counter()
    act(*given)
    QApplication.processEvents()
    return (time.perf_counter() - started) * 1000


if __name__ == "__main__":
    main()
