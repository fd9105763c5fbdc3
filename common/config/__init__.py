"""What the operator said: settings and client properties, read and checked. Connects nowhere."""
