"""Text of a log or a record as a terminal may get it."""


def plain(text: str, keep: str = "") -> str:
    """`text` that cannot steer the terminal and can be written as UTF-8. keep: control characters that may stay."""
    if text.isprintable():
        return text
    kept = "".join(c if c.isprintable() or c in keep else "�" for c in text)
    return kept.encode("utf-8", "replace").decode()
