"""Run every benchmark: `python -m benchmarks`."""

from benchmarks import check_ckpt, fleet, startup

for benchmark in (startup, fleet, check_ckpt):
    benchmark.main()
