"""Text that others wrote, made safe and short enough to show to a person. Pure; imports nothing."""

SHOWN = 80


def quoted(text: str) -> str:
    """Given foreign text, return it quoted, escaped and cut to about SHOWN characters."""
    shown = ascii(text[:SHOWN]) if not text.isprintable() else repr(text[:SHOWN])
    if len(text) <= SHOWN and len(shown) <= SHOWN + 2:
        return shown
    return shown[: SHOWN - 2].rstrip("\\'\"") + "…" + shown[-1]
