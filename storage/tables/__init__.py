"""The tables of the sessions file: functions over a connection, inside a transaction of the caller's."""
