"""Damage in the sessions file: found, set aside, salvaged; and the backups."""
