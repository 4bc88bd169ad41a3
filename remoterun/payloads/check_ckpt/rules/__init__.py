"""From what was read and counted to findings."""
