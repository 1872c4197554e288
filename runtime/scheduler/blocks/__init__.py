"""KV in the block file and in snapshots: saving, restoring, copying."""
