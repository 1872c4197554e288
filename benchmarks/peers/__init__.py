"""One module per peer: what the same requests cost with another library's own means."""
