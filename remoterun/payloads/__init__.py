"""The built-in payloads: they run on targets; here they are only read as data."""
