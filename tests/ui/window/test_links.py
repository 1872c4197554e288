"""Links in the text of a model: confirmed first, spelled out, opened only by the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from PySide6.QtCore import QObject, Qt, QUrl, Slot
from PySide6.QtGui import QDesktopServices
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import FakeWorkbench
from ui import MainWindow
from ui.widgets.visible import place_of, safe_url, spelled

Play = Callable[[Scene], None]


class Browser(QObject):
    """Replaces the system's browser and mail program."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    @Slot(QUrl)
    def open(self, url: QUrl) -> None:
        self.opened.append(url.toString())


@pytest.fixture
def browser(app: QApplication) -> Iterator[Browser]:
    del app
    browser = Browser()
    for scheme in ("https", "http", "mailto"):
        QDesktopServices.setUrlHandler(scheme, browser, "open")  # type: ignore[arg-type]  # the stub says bytes, Qt takes str
    yield browser
    for scheme in ("https", "http", "mailto"):
        QDesktopServices.unsetUrlHandler(scheme)


def click(button: object) -> None:
    QTest.mouseClick(button, Qt.MouseButton.LeftButton)  # type: ignore[call-overload]  # one of the bar's buttons


@pytest.mark.parametrize(
    ("address", "place", "shown"),
    [
        ("https://example.org/x", "example.org", "https://example.org/x"),
        ("http://example.org:81", "example.org", "http://example.org:81"),
        ("mailto:someone@example.org", "someone@example.org", "mailto:someone@example.org"),
        # hosts that look like another one are spelled out
        ("https://bank.com@evil.org/", "evil.org", "https://bank.com@evil.org/"),
        ("https://p\u0430ypal.com/", "xn--pypal-4ve.com", "https://xn--pypal-4ve.com/"),
        ("https://example.org/a b\u202ec", "example.org", "https://example.org/a%20b%E2%80%AEc"),
    ],
)
def test_an_address_is_shown_in_the_encoding_in_which_it_is_sent(address: str, place: str, shown: str) -> None:
    url = safe_url(address)
    assert url is not None
    assert (place_of(url), spelled(url)) == (place, shown)


@pytest.mark.parametrize(
    "address",
    ["", "file:///etc/passwd", "javascript:alert(1)", "data:text/html,x", "https://", "smb://host/x", "example.org", "mailto:",
     "ssh://host", "https://[::1", "https://example.org/" + "x" * 9000],
)  # fmt: skip
def test_other_addresses_are_not_offered(address: str) -> None:
    assert safe_url(address) is None


def test_a_link_opens_only_after_confirmation_in_the_bar(in_window: Play, bench: FakeWorkbench, browser: Browser) -> None:
    async def scene(window: MainWindow) -> None:
        bar, view = window.parts.link, window.parts.transcript
        assert not bar.isVisible()
        # when a link is clicked: the bar shows it, nothing is opened
        view.read.link_requested.emit("https://bank.com@evil.org/<b>x</b>")
        assert bar.isVisible()
        assert (bar.place.text(), bar.address.text()) == ("evil.org", "https://bank.com@evil.org/%3Cb%3Ex%3C/b%3E")
        assert {label.textFormat() for label in bar.findChildren(QLabel)} == {Qt.TextFormat.PlainText}
        await frames()
        assert browser.opened == []
        # after a copy, the bar is hidden
        click(bar.copy_button)
        assert QApplication.clipboard().text() == "https://bank.com@evil.org/%3Cb%3Ex%3C/b%3E"
        assert not bar.isVisible()
        # a link is opened by a second click, on the button of the bar
        view.read.link_requested.emit("mailto:a@example.org")
        assert bar.open_button.text() == "Write mail"
        click(bar.open_button)
        assert browser.opened == ["mailto:a@example.org"]
        assert not bar.isVisible()
        # the bar is dismissed with the mouse, with Escape, and by opening another session
        view.read.link_requested.emit("https://example.org")
        click(bar.dismiss_button)
        assert not bar.isVisible()
        view.read.link_requested.emit("https://example.org")
        view.read.setFocus()
        QTest.keyClick(view, Qt.Key.Key_Escape)
        assert not bar.isVisible()
        view.read.link_requested.emit("https://example.org")
        window.controller.open(3)
        await until(lambda: not bar.isVisible())
        assert len(browser.opened) == 1

    in_window(scene)
