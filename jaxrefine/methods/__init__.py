"""One file for each row of the comparison table, and what they share."""
