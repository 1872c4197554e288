"""Measurements that need their own process; each prints one line of JSON."""
