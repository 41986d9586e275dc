"""The prompts: plain text, one file a request, and one a task."""
