"""What a lane of the replicator does: reads source partitions, cuts frames, appends them to staging."""
