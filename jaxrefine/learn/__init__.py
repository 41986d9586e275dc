"""Fitting, rollouts and evaluation as pure functions: arrays in, arrays out, no I/O."""
