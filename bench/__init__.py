"""Benchmarks: what Verbatim costs, measured on real brokers beside its peers."""
