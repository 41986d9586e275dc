"""Meta-World's door-open-v3: its arm, its door, its rewards, in JAX."""
