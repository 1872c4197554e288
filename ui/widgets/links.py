"""Addresses in what a model wrote: which are offered at all, and how they are spelled so that nobody is fooled."""

from __future__ import annotations

from PySide6.QtCore import QUrl

SCHEMES = ("https", "http", "mailto")
MOST_CHARACTERS = 8_192  # of an address; browsers take no longer ones either


def safe_url(address: str) -> QUrl | None:
    """The address as it would be opened, percent-encoded and with the host in ASCII; None for any that is not offered."""
    url = QUrl(address, QUrl.ParsingMode.TolerantMode)
    if len(address) > MOST_CHARACTERS or not url.isValid() or url.scheme() not in SCHEMES:
        return None
    if url.scheme() == "mailto":
        return url if "@" in url.path() else None
    return url if url.host() else None


def spelled(url: QUrl) -> str:
    """Every character as it would be sent: letters of another alphabet that look like ours show as what they are."""
    return bytes(url.toEncoded().data()).decode("ascii", "replace")


def place_of(url: QUrl) -> str:
    """Where it leads: the host, in ASCII, whatever stands before it; of a mail address all of it."""
    return url.path() if url.scheme() == "mailto" else url.host(QUrl.ComponentFormattingOption.FullyEncoded)
