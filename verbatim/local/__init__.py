"""Kafka clusters and the applications as processes of this machine."""
