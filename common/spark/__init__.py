"""Spark's session, and the jobs that run lanes. Knows no Kafka."""
