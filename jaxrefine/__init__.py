"""Readable control policies: written by a language model, fitted, rolled out and refined with JAX."""

__version__ = "0.1.0"
