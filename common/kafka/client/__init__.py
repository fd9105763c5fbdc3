"""confluent_kafka's clients, set up for correctness, and calls through them."""
