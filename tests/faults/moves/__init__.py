"""Commands that move consumers, killed at each of their steps and run again, under load on real brokers; an
oracle that counts records says what came of it. `python -m tests.faults.moves` plays them."""
