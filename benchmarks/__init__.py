"""Benchmarks: always two programs side by side in one run, always as ratios."""
