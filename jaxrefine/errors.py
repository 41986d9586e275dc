"""The one exception that stands for a mistake a person can mend."""


class UserError(Exception):
    """What was wrong, where, and what to do about it.

    The command prints the message alone and exits with status 2; a traceback would hide it.
    """
