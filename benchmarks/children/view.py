"""A process of its own that drives the window's widgets without a screen, and says what each frame took, as one JSON line.

`python -m benchmarks.children.view TOKENS SESSIONS TURNS`: a stream of so many tokens, once in paragraphs and once in one;
then, over all that text, the mouse, jumps anywhere and other colours; a slider of *Why*; then a list of so many sessions, and
the full-window tree of a session with so many turns.
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

FRAME_TOKENS = 5  # that arrive between two frames: 300 a second
TOP_K = 10
VOCABULARY = 3000  # words
PARAGRAPH = 120  # tokens, where there are paragraphs
JUMPS, MOVES, SWITCHES = 300, 2000, 12
MOVED, ROW_SIZE = 100, 50_000  # of a slider, and the vocabulary
OPENED, ROW_TOKENS = 9, 60  # times, and tokens of a row
READ_AT_FIRST = 80  # rows that are read before the tree opens
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
    """A stream in runs of one frame each: words with numbers and alternatives, a newline after each paragraph."""
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
                logprob=-rng.exponential(1.4, n).astype(np.float32),  # about two bits a token
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
    """A transcript on the screen, with an answer that has just begun."""
    view = TranscriptView()
    view.resize(WIDTH, HEIGHT)
    view.show()
    run = TokenRun.unscored([], [], [], Origin.SAMPLED)
    begun = TurnView(NODE, "assistant", run, TurnStatus.STREAMING, (NODE,))
    view.set_session(SessionView(1, "bench", (begun,), ()))
    QApplication.processEvents()
    return view


def append(view: TranscriptView, runs: Sequence[TokenRun]) -> Frames:
    """A frame for each run: taken in, laid out, painted."""
    return [frame(view.append_tokens, NODE, run) for run in runs]


def scroll(area: QAbstractScrollArea, jumps: int) -> Frames:
    """Jumps anywhere, each painted."""
    bar = area.verticalScrollBar()
    places = np.random.default_rng(3).integers(max(bar.maximum(), 1), size=jumps).tolist()
    return [frame(bar.setValue, place) for place in places]


def moves(view: TranscriptView) -> Frames:
    """The mouse moves over the text: which token is under it, and what follows from that."""
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
    """Other colours, painted."""
    chosen = [list(Measure)[i % len(Measure)] for i in range(1, SWITCHES + 1)]
    return [frame(view.colours.colour_by, measure) for measure in chosen]


def session_list(sessions: int) -> tuple[Frames, Frames]:
    """The list is filled and painted; jumps anywhere in it."""
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
    """The rows of a tree are found, shown and painted, their words in colours."""
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
        panel.close()  # or the next one paints it again, as the window that is no longer active
        panel.deleteLater()
    return shown


def made_tree(turns: int) -> tuple[Tree, int]:
    """Questions and answers, of which every 25th is left in its middle, as they stand before their texts were read."""
    columns, tip, number = NodeColumns(1), None, 0
    heads = []
    while number < turns:
        for role, at in (("user", None), ("assistant", None), *([("assistant", 7)] if number % 50 == 48 else [])):
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
    """A slider of *Why* moves, and all that hangs on it is shown: over what is stored of a token, and over a whole row."""
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
    """Milliseconds of an act and of the turn of the event loop after it: layout that is due, the paint of what changed."""
    started = time.perf_counter()
    act(*given)
    QApplication.processEvents()
    return (time.perf_counter() - started) * 1000


if __name__ == "__main__":
    main()
