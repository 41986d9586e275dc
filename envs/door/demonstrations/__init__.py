"""Demonstrations of Door Opening, with where they come from, and the program that recorded them."""
