"""What is known of Kafka, and nothing of Verbatim."""
