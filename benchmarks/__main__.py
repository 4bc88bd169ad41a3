"""Run every benchmark: `python -m benchmarks`."""

from benchmarks import check_ckpt, fleet, memory, series, startup

for benchmark in (startup, fleet, memory, check_ckpt, series):
    benchmark.main()
