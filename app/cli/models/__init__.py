"""`elsewise models`: the shelf, the hub, servers."""
