"""The same requests with other libraries' own means."""
