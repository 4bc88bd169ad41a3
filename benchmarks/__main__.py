"""Run every benchmark: `python -m benchmarks`."""

from benchmarks import check_ckpt, fleet, series, startup

for benchmark in (startup, fleet, check_ckpt, series):
    benchmark.main()
