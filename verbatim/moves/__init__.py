"""Moves of consumers from one cluster to the other: cutover, failover, groups one by one."""
