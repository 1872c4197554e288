"""The hub token and the keys of servers in the system keychain. The parent reads the token and sends it to the child."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from runtime.errors import InvalidRequestError, KeychainError

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")  # of the environment, before the keychain
_SERVICE = "elsewise"
_LONGEST = 1000  # characters


def _alternative(address: str) -> str:
    """The environment variables that can hold the hub's token, or a server's key, in place of the keychain; for messages."""
    if address == hub_address():
        return "(or set `HF_TOKEN` in the environment)"
    return "(or set `ELSEWISE_API_KEY` and, to the server's host, `ELSEWISE_API_HOST` in the environment)"


def hub_address() -> str:
    """The hub's address: ``HF_ENDPOINT``, or Hugging Face. A token is stored for one hub and never sent to another."""
    return os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or "https://huggingface.co"


def token_in_environment() -> str:
    """The name of the environment variable with a token, which takes precedence over the keychain; empty without one."""
    return next((name for name in VARIABLES if os.environ.get(name, "").strip()), "")


def keep_token(token: str) -> str:
    """Stores a token for the hub in the system keychain, replacing an earlier one. Blocks; the system may ask its user.

    Args:
        token: A user access token with the right to read.

    Returns:
        The name of the keychain.

    Raises:
        InvalidRequestError: The text is not a token; the message does not show it.
        KeychainError: There is no keychain, it is locked, or it refuses.
    """
    stripped = token.strip()
    sound = stripped.isascii() and stripped.isprintable() and " " not in stripped
    if not (stripped and sound and len(stripped) <= _LONGEST):
        raise InvalidRequestError("this is no token: give the one line of letters and digits that the hub showed (hf_...)")
    return keep_key(hub_address(), stripped)


def forget_token() -> bool:
    """Removes the hub's token from the system keychain; False without one.

    Raises:
        KeychainError: There is no keychain, it is locked, or it refuses.
    """
    address = hub_address()
    return _delete(_keychain(address), address)


def is_token_kept() -> bool:
    """Whether the system keychain has a token for the hub; False without a keychain."""
    return bool(kept_token())


def kept_token() -> str:
    """The keychain's token; empty where the environment has a token, or where the keychain is missing or has none.

    Public downloads must not fail because of a keychain; a refused download explains how to log in.
    """
    return "" if token_in_environment() else kept_key(hub_address())


def keep_key(address: str, key: str) -> str:
    """Stores the key of a server in the system keychain under the server's address.

    Returns:
        The name of the keychain.

    Raises:
        InvalidRequestError: The text is not a key; the message does not show it.
        KeychainError: There is no keychain, it is locked, or it refuses.
    """
    stripped = key.strip()
    if not (stripped and stripped.isascii() and stripped.isprintable() and len(stripped) <= _LONGEST):
        raise InvalidRequestError("this is no key: give one line of printable ASCII characters")
    keychain = _keychain(address)
    try:
        keychain.set_password(_SERVICE, address, stripped)
    except Exception as fault:  # noqa: BLE001  # keychain backends raise any exception
        raise _refused(address, fault, stripped) from None  # its cause may contain the key
    return str(keychain.name)


def kept_key(address: str) -> str:
    """The keychain's key of a server; empty without one, or without a keychain."""
    try:
        return _keychain(address).get_password(_SERVICE, address) or ""
    except Exception:  # noqa: BLE001  # as above; no key then
        return ""


def forget_key(address: str) -> None:
    """Removes a server's key; without a keychain there is nothing to remove."""
    try:
        keychain = _keychain(address)
    except KeychainError:
        return
    _delete(keychain, address)


def _delete(keychain: KeyringBackend, address: str) -> bool:
    """Removes the key of an address; False without one."""
    try:
        if keychain.get_password(_SERVICE, address) is None:
            return False
        keychain.delete_password(_SERVICE, address)
    except Exception as fault:  # noqa: BLE001  # as above
        raise _refused(address, fault) from None
    return True


def _keychain(address: str) -> KeyringBackend:
    """The system keychain found by keyring.

    Raises:
        KeychainError: This machine has none, or it refuses.
    """
    import keyring  # scans every installed package: imported only for a hub
    from keyring.core import recommended

    try:
        found = keyring.get_keyring()
        fit = recommended(found)
    except Exception as fault:  # noqa: BLE001  # as above
        raise _refused(address, fault) from None
    if not fit:  # keyring.backends.fail, or a plain file
        raise KeychainError(
            "this machine has no system keychain (on Linux: gnome-keyring or KWallet, unlocked in your session); start it "
            + _alternative(address)
        )
    return found


def _refused(address: str, fault: Exception, token: str = "") -> KeychainError:
    reason = f"{type(fault).__name__}: {fault}".rstrip(": ")
    reason = reason.replace(token, "(token)") if token else reason
    return KeychainError(f"the system keychain refuses ({reason[:200]}); unlock it {_alternative(address)}")
