"""Run every benchmark: `python -m benchmarks`."""

from benchmarks import check_ckpt, fleet, history, memory, pickle_reader, series, startup

for benchmark in (startup, fleet, memory, check_ckpt, pickle_reader, series, history):
    benchmark.main()
