"""All of it from where it is written already."""
# keeps: nothing
# says: given is not here: it has what this lesson asks you to write

from given import fresh, pull, push, ranges, serve, take  # noqa: F401
