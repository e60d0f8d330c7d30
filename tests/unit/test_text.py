"""How foreign text is shown."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from basestation_runner.text import SHOWN, quoted


@settings(deadline=None)
@given(st.text() | st.text("'\"\\\n\U0010ffff", min_size=SHOWN - 5))
def test_any_text_is_shown_short_printable_and_in_quotes(text: str) -> None:
    shown = quoted(text)
    assert shown.isprintable()
    assert len(shown) <= SHOWN + 2
    assert shown[0] == shown[-1] in "'\""


@settings(deadline=None)
@given(st.text(max_size=10))
def test_a_short_text_is_shown_whole(text: str) -> None:
    assert quoted(text) == repr(text) or len(repr(text)) > SHOWN


def test_a_long_text_is_cut_visibly() -> None:
    assert quoted("a" * 1000) == "'" + "a" * (SHOWN - 2) + "…'"
