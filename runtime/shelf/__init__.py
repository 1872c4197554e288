"""The models on this machine: imported, listed, verified, locked, removed; the catalogue and the embedded model."""
