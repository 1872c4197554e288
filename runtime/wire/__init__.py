"""What crosses the pipe between a program and its engine process.

`frames` cuts bytes into messages, `messages` types them, `arrays` and `faults` carry numpy columns and errors,
`methods` lists what can be called, `connection` puts all of it on an asyncio transport. No pickle, no sockets of its own.
"""
