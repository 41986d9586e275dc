"""Policies: programs written by a language model, and the network they are compared with."""
