"""Text that others wrote, made safe and short enough to show to a person. Pure; imports nothing."""

SHOWN = 80


def quoted(text: str) -> str:
    """Given foreign text, return it quoted, escaped and cut to about SHOWN characters."""
    shown = repr(text[:SHOWN])
    if len(text) <= SHOWN and len(shown) <= SHOWN + len("''"):
        return shown
    return shown[: SHOWN - 1].rstrip("\\") + "…" + shown[-1]
