"""Measurements that need a process of their own, each of which prints one line of JSON."""
