"""Kafka's protocol, spoken directly: connections, record batches, a consumer and a transactional producer of
them."""
