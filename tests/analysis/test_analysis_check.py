from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrefine.analysis import check_analysis


@pytest.mark.parametrize(
    "code",
    [
        "def run_all(df): pass",
        "import numpy\ndef run_all(df: 'x', *, top=3) -> None:\n    return 1",
        "def run_all(*tables): pass",
        "def run_all(df, window=5): pass",
        "def run_all(): pass\ndef run_all(df): pass",
        "def run_all(df): print('\\d')",  # an invalid escape warns where it is parsed
    ],
)
def test_what_can_be_called_with_the_table_passes(code: str) -> None:
    assert check_analysis(code) is None


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("", "does not define a function run_all(df)"),
        ("def analyse(df): pass", "does not define"),
        ("class A:\n    def run_all(self, df): pass", "does not define"),
        ("async def run_all(df): pass", "does not define"),
        ("def run_all(): pass", "one argument, the table: def run_all(df). It is defined as run_all()"),
        ("def run_all(df, path): pass", "run_all(df, path)"),
        ("def run_all(df, *, path): pass", "run_all(df, *, path)"),
        ("def run_all(df):\n    x = = 1", "not valid Python: invalid syntax at line 2: `x = = 1`"),
        ("def run_all(df):\npass", "expected an indented block"),
        ("def run_all(df): pass\nreturn 1", "'return' outside function"),
        ("def run_all(df): pass\n" + "(" * 5000, "too many nested parentheses"),
        ("def run_all(df): return " + "-" * 50_000 + "1", "cannot be read as Python"),
        ("def run_all(df): pass\0", "null bytes"),
        ("def run_all(df): return '\udc80'", "cannot be read as Python"),
    ],
)
def test_what_cannot_gets_one_paragraph(code: str, complaint: str) -> None:
    said = check_analysis(code)
    assert said is not None
    assert complaint in said
    assert "\n" not in said


@given(st.text(st.characters(exclude_categories=()), max_size=60))
def test_no_text_at_all_breaks_the_check(code: str) -> None:
    assert isinstance(check_analysis(code), str)
