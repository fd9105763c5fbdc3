"""What a lane of the deduplicator does: reads frames, drops what was delivered, delivers the rest in
transactions."""
