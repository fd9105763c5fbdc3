"""What both applications share. Imports neither of them."""
