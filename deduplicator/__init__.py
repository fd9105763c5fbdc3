"""Phase 2: frames from the staging topic into the destination topics, exactly once."""
