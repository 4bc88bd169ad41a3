"""Checkpoints that follow each other: what is kept of each, and what a comparison tells."""
