"""The tab of the KV cache: memory, trie, last request, and the commands to pin, clear and check it."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import QTimer
from PySide6.QtGui import QHideEvent

from ui.controller import Controller
from ui.inspector.tab import FactGrid, InspectorTab
from ui.inspector.words import percent
from ui.port import QT_TRANSLATE_NOOP, CacheCheck, CacheView, EdgeView, EngineState, StatusView, Tier
from ui.widgets.controls import button, column_in, fill, row, words
from ui.widgets.labels import Caption
from ui.widgets.numbers import count, size
from ui.widgets.visible import one_line

REFRESH_MS = 1000  # while the tab is visible; the numbers come with the status, no request is sent
TAIL_MOST = 20  # characters shown of the end of an edge


class CacheTab(InspectorTab):
    """Shows a `CacheView` and the cache's part of a `StatusView`."""

    title = QT_TRANSLATE_NOOP("Inspector", "Cache")
    for_developers = True

    def __init__(self) -> None:
        super().__init__()
        self.empty = words(self.tr("Nothing is cached yet: the engine has not read anything."))
        self.choose_button = button(self.tr("Choose a model…"))
        self.memory, self.trie, self.last, self.turns, self.edges = (FactGrid(columns=1) for _ in range(5))
        self.ended = words()
        self._sections = (
            (Caption(self.tr("Memory")), self.memory),
            (Caption(self.tr("Trie")), self.trie),
            (Caption(self.tr("Last request")), self.last),
            (Caption(self.tr("Turns of this path")), self.turns),
            (Caption(self.tr("Largest edges")), self.edges),
        )
        self.keep_button, self.clear_button = button(self.tr("Pin this path")), button(self.tr("Clear"))
        self.check_button = button(self.tr("Check this path uncached"))
        self.lacking, self.said = words(), words()
        self._kept = False
        self._status = StatusView(EngineState.NONE)
        self._view: CacheView | None = None
        self._explain()
        self.check_button.clicked.connect(self._check)
        self._again = QTimer(self, singleShot=True, interval=REFRESH_MS)
        self._again.timeout.connect(self.refresh)
        self._lay_out()
        self.show_cache(None)
        self.show_status(self._status)

    def bind(self, controller: Controller) -> None:
        """Connects the tab. Results are shown here while the tab is visible, else (a command of the menu) in the window."""

        def tell(words: str) -> None:
            self.say(words) if self.isVisible() else self.reported.emit(words)

        super().bind(controller)
        self.choose_button.clicked.connect(controller.models.ask_menu)
        self.keep_button.clicked.connect(lambda: controller.cache.keep(not self._kept))
        self.clear_button.clicked.connect(self.forget)
        self.clear_button.clicked.connect(controller.cache.clear)
        controller.cache.view_changed.connect(self.show_cache)
        controller.cache.cleared.connect(lambda freed: tell(self.cleared(freed)))
        controller.cache.refused.connect(self._refuse)
        controller.other_shown.connect(self.forget)

    # ---- shown ------------------------------------------------------------------------------------------------------

    def show_status(self, status: StatusView) -> None:
        self._status = status
        self.lacking.setText(status.lacking("cache"))
        last: Mapping[str, str] = {}
        if status.reused is not None and status.computed is not None:
            last = {
                self.tr("prompt tokens"): count(status.reused + status.computed),
                self.tr("reused"): count(status.reused),
                self.tr("computed"): count(status.computed),
            }
        self._fill(self.last, last)
        self._fill(self.turns, {self._tier(tier): count(status.tiers[tier]) for tier in Tier if tier in status.tiers})
        self._show_memory()
        self._refresh()
        self.refresh()

    def show_cache(self, view: CacheView | None) -> None:
        """Shows the trie; None if no model runs."""
        self._view, self._kept = view, view is not None and view.kept is not None
        self.keep_button.setText(self.tr("Unpin this path") if self._kept else self.tr("Pin this path"))
        looked = self.tr("last look-up: {0} tokens found; {1}")
        self.ended.setText("" if view is None or not view.ended else looked.format(count(view.found), view.ended))
        self._fill(self.trie, {} if view is None else self._of_trie(view))
        edges = enumerate(() if view is None else view.largest, 1)  # numbered: two may end in the same words
        self._fill(self.edges, {f"{n}  …{_end(edge.tail)}": _held(edge) for n, edge in edges})
        self._show_memory()
        self._refresh()

    def show_check(self, check: CacheCheck) -> None:
        first = self.tr("the same token is first") if check.same_first else self.tr("another token is first")
        self.say(
            self.tr("after {0} tokens the {1} log-probabilities differ by {2:.1e} nats at most; {3}").format(
                count(check.tokens), count(check.entries), check.difference, first
            )
        )

    def cleared(self, freed: int) -> str:
        """The message after the cache was cleared of `freed` bytes."""
        return self.tr("cache cleared: {0} freed. Texts are kept and computed again when needed").format(size(freed))

    def say(self, text: str) -> None:
        self.said.setText(text)
        self.said.setVisible(bool(text))
        self._refresh()

    def forget(self) -> None:
        self.say("")

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._again.stop()

    # ---- details ----------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        if self.isVisible() and self._controller is not None:
            self._controller.cache.refresh()
            self._again.start()

    def _check(self) -> None:
        self.say(self.tr("computing the path without the cache…"))
        self.request("check", lambda workbench, session: workbench.cache.check_uncached(session), self.show_check, self._refuse)

    def _refuse(self, words: str) -> None:
        assert self._controller is not None  # which sent the command
        self.say(words) if self.isVisible() else self._controller.refused.emit(words)

    def _show_memory(self) -> None:
        status, view = self._status, self._view
        memory: dict[str, str] = {}
        if status.kv_budget:
            memory = {
                self.tr("KV held"): size(status.kv_bytes),
                self.tr("budget"): size(status.kv_budget),
                self.tr("used"): percent(status.kv_bytes / status.kv_budget),
            }
        if view is not None and view.working_bytes:
            memory[self.tr("in work")] = size(view.working_bytes)
        self._fill(self.memory, memory)

    def _of_trie(self, view: CacheView) -> dict[str, str]:
        found = view.hits + view.misses
        facts = {
            self.tr("edges"): count(view.edges),
            self.tr("tokens"): count(view.tokens),
            self.tr("bytes"): size(view.bytes),
            self.tr("leases"): f"{count(view.leases)} · {size(view.leased_bytes)}" if view.leases else "0",
            self.tr("hits"): self.tr("{0} of {1}").format(count(view.hits), count(found)),
            self.tr("pinned paths"): count(view.pins),
        }
        if view.kept is not None:
            facts[self.tr("pinned of this path")] = self.tr("{0} tokens").format(count(view.kept))
        return facts

    def _fill(self, facts: FactGrid, shown: Mapping[str, str]) -> None:
        caption = next(caption for caption, held in self._sections if held is facts)
        caption.setVisible(bool(shown))
        facts.setVisible(bool(shown))
        facts.show_facts(shown)

    def _refresh(self) -> None:
        runs, lacks = self._view is not None, bool(self.lacking.text())
        nothing = all(facts.isHidden() for _, facts in self._sections)
        self.empty.setVisible(nothing and not lacks)
        self.lacking.setVisible(lacks)
        self.choose_button.setVisible(nothing and self._status.engine is EngineState.NONE)
        self.ended.setVisible(bool(self.ended.text()))
        for part in (self.keep_button, self.clear_button, self.check_button):
            part.setVisible(runs or lacks)
            part.setEnabled(not lacks)

    def _explain(self) -> None:
        self.keep_button.setAccessibleDescription(self.tr("Keeps it in memory; other text does not evict it"))
        self.clear_button.setAccessibleName(self.tr("Clear the cache"))
        self.clear_button.setAccessibleDescription(self.tr("Texts are kept and computed again when needed"))
        self.check_button.setAccessibleDescription(
            self.tr("Computes the whole path without the cache and compares the results")
        )

    def _lay_out(self) -> None:
        column = column_in(self, self.empty, row(self.choose_button, 1), spacing=6, margins=(16, 12, 16, 16))
        for caption, facts in self._sections:
            column.addWidget(caption)
            column.addWidget(facts)
            if facts is self.trie:
                column.addWidget(self.ended)
            column.addSpacing(10)
        fill(column, row(self.keep_button, self.clear_button, 1), row(self.check_button, 1), self.lacking, self.said, 1)

    def _tier(self, tier: Tier) -> str:
        return {
            Tier.WARM: self.tr("warm, in memory"),
            Tier.DISK: self.tr("on disk"),
            Tier.COLD: self.tr("cold, to be computed"),
            Tier.SERVER: self.tr("on the server"),
        }[tier]


def _held(edge: EdgeView) -> str:
    under = f" · {one_line(edge.adapters)}" if edge.adapters else ""
    return f"{count(edge.tokens)} · {size(edge.bytes)}{under}"


def _end(tail: str) -> str:
    """The last words of an edge, on one line."""
    return one_line(tail)[-TAIL_MOST:]
