"""Faults in SQLite's own writes and syncs, without ptrace and without a compiler: the files' method tables are replaced.

SQLite reaches the disk through a VFS (https://www.sqlite.org/vfs.html): `xOpen` fills in a file, whose first word points to
a table of methods. Here `xOpen` of the default VFS is replaced through ctypes by one that hands out a copy of that table
with our own `xWrite` and `xSync`. Use it only in a process that is meant to fail, never in that of the tests.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_MAIN_DB, _WAL = 0x100, 0x80000  # SQLITE_OPEN_*: the flags of the main database and its WAL
_METHODS = 19  # words of sqlite3_io_methods, version 3; the first is its version
_WRITE, _SYNC = 3, 5
_CALLS = {"pwrite64": _WRITE, "fdatasync": _SYNC}
_CODES = {
    ("pwrite64", "ENOSPC"): 13,
    ("pwrite64", "EIO"): 10 | 3 << 8,
    ("fdatasync", "EIO"): 10 | 4 << 8,
}  # as the unix VFS reports it

_Write = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
_Sync = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_Open = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, ctypes.POINTER(ctypes.c_int)
)
_Table = ctypes.c_void_p * _METHODS


class _Vfs(ctypes.Structure):
    """The head of sqlite3_vfs."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("longest_path", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("open", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class Fault:
    """A fault and the calls that it affects, in the syntax of strace: `pwrite64:error=ENOSPC:when=7+`.

    Beside strace's `error=` and `signal=SIGKILL` there are `signal=TORN`, a kill after half of the bytes are written, and
    `count=COUNT`, which only logs each call.
    """

    call: str
    action: str
    first: int
    again: bool

    @classmethod
    def parse(cls, text: str) -> Fault:
        call, what, when = text.split(":")
        return cls(call, what.partition("=")[2], int(when.partition("=")[2].rstrip("+")), when.endswith("+"))


class _Injector:
    """Counts the calls and makes the chosen ones fail. Each fault is one line in the log."""

    def __init__(self, fault: Fault, log: Path) -> None:
        self._fault, self._log, self._calls = fault, log, 0
        self._tables: dict[int, ctypes.Array[ctypes.c_void_p]] = {}
        self._kept: list[object] = []  # kept alive: SQLite has pointers to these
        library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))  # with the symbols of its SQLite
        find = library.sqlite3_vfs_find
        find.restype, find.argtypes = ctypes.POINTER(_Vfs), [ctypes.c_char_p]
        vfs = find(None)
        self._open = _Open(vfs.contents.open)
        ours = _Open(self._opened)
        self._kept += [vfs, ours]
        vfs.contents.open = ctypes.cast(ours, ctypes.c_void_p)

    def _opened(self, vfs: int, name: int, file: ctypes._Pointer[ctypes.c_void_p], flags: int, out: object) -> int:
        code: int = self._open(vfs, name, file, flags, out)
        table = file[0]
        if code == 0 and table is not None and flags & (_MAIN_DB | _WAL):
            file[0] = ctypes.addressof(self._spoilt(int(table)))
        return code

    def _spoilt(self, address: int) -> ctypes.Array[ctypes.c_void_p]:
        """A copy of a method table with the replaced methods."""
        if address not in self._tables:
            table = _Table.from_buffer_copy(_Table.from_address(address))
            if self._fault.call == "pwrite64":
                method: object = _Write(self._writing(_Write(table[_WRITE] or 0)))
            else:
                method = _Sync(self._syncing(_Sync(table[_SYNC] or 0)))
            self._kept.append(method)
            table[_CALLS[self._fault.call]] = ctypes.cast(method, ctypes.c_void_p)  # type: ignore[arg-type]  # any function pointer
            self._tables[address] = table
        return self._tables[address]

    def _writing(self, write: Callable[..., int]) -> Callable[[int, int, int, int], int]:
        def spoilt(file: int, data: int, size: int, offset: int) -> int:
            code = self._next(lambda: write(file, data, size // 2, offset))
            return write(file, data, size, offset) if code is None else code

        return spoilt

    def _syncing(self, sync: Callable[..., int]) -> Callable[[int, int], int]:
        def spoilt(file: int, flags: int) -> int:
            code = self._next(lambda: 0)
            return sync(file, flags) if code is None else code

        return spoilt

    def _next(self, half: Callable[[], int]) -> int | None:
        """Counts one call; returns SQLite's code of the fault, or None when the call shall be made."""
        fault = self._fault
        self._calls += 1
        if self._calls < fault.first or (self._calls > fault.first and not fault.again):
            return None
        with self._log.open("a") as log:
            log.write(f"{fault.call} {self._calls}{'' if fault.action == 'COUNT' else ' (INJECTED)'}\n")
        if fault.action == "COUNT":
            return None
        if fault.action == "TORN":
            half()
        if fault.action in ("SIGKILL", "TORN"):
            os.kill(os.getpid(), signal.SIGKILL)
        return _CODES[fault.call, fault.action]


def install(fault: str, log: Path) -> object:
    """Makes SQLite files fail that this process opens from now on. Keep the result as long as SQLite is used.

    Raises:
        AttributeError: The SQLite of this Python is not accessible.
    """
    return _Injector(Fault.parse(fault), log)
