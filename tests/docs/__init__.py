"""Docs that cannot drift: generated pages, and the checks that nothing is undocumented."""
