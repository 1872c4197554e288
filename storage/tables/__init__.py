"""The tables of the sessions file, as functions that take a connection and run in a transaction of the caller."""
