"""Pickles as inert values: decoded, never loaded."""
