"""Spark's session, and the query that runs lanes. Knows no Kafka."""
