"""The guards that `make mutants` takes out are still where it looks for them, and so are the tests that must notice."""

from __future__ import annotations

import pytest
from tools.mutants import MUTANTS, ROOT, Mutant

AT_LEAST = 25


def test_there_are_enough_of_them() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= AT_LEAST


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_guard_is_where_it_is_taken_out_and_its_tests_are_there(mutant: Mutant) -> None:
    text = (ROOT / "src" / "timeball" / mutant.file).read_text()

    assert text.count(mutant.old) == 1
    assert mutant.old != mutant.new
    assert mutant.tests
    for test in mutant.tests:
        file, _, function = test.partition("::")
        assert f"def {function.partition('[')[0]}(" in (ROOT / file).read_text()
