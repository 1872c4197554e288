"""`elsewise doctor --deep`: measures what this machine does with the models, the window and the disk."""
