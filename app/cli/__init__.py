"""The command line: global options come before the command; results go to stdout, everything else to stderr."""

import os
import sys

from app.names import check_names


def main() -> None:
    """Runs the command line and exits: 0 done, 1 the work failed, 2 bad use, 130 Ctrl-C."""
    if getattr(sys, "frozen", False):
        from resources.processes import start_in_bundle  # before `check_names`: no foreign package can shadow it there

        start_in_bundle(sys.argv[1:])
    os.umask(0o077)  # only the owner can read what we write: files 0600, folders 0700
    check_names()  # before any import of ours that a foreign package could shadow
    from app.cli.group import run

    run()


__all__ = ["main"]
