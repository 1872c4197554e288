"""The tables of the sessions file: functions over a connection, in a transaction of the caller."""
