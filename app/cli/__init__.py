"""The command line: global options stand before the command; results go to stdout, everything else to stderr."""

import os
import sys

from app.names import check_names


def main() -> None:
    """Runs the command line and exits: 0 done, 1 the work failed, 2 bad use, 130 Ctrl-C."""
    if getattr(sys, "frozen", False):
        from resources.processes import start_in_bundle  # nothing can stand in for it there

        start_in_bundle(sys.argv[1:])
    os.umask(0o077)  # what we write is its owner's alone: files 0600, folders 0700
    check_names()  # before anything of ours is imported that a foreign package could stand in for
    from app.cli.group import run

    run()


__all__ = ["main"]
