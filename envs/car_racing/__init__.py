"""Gymnasium's CarRacing-v3 in closed form: its tracks, its car, its rewards."""
