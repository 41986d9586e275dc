"""Demonstrations of Car Racing, with where they come from, and the program that recorded them."""
