"""What the replicator's driver does: plans, origins, heartbeats, what it says of topics."""
