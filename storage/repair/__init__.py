"""Damage in the sessions file: verification, quarantine, salvage, backups."""
