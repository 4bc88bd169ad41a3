"""Which files below a folder make up checkpoints."""
