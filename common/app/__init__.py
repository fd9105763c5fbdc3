"""What one running instance is: the main loop, election, health, signals, the command line."""
