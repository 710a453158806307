"""What is wrong with a trace."""


class TraceError(ValueError):
    """A file or a line of it is not of the format; the message names the line."""
