"""The list of mutations is in step with the code: otherwise it would be noticed by whoever next runs them all."""

from __future__ import annotations

import pytest

from tests.mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.file)
def test_a_mutation_changes_one_place_and_names_tests_that_exist(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text().count(mutation.old) == 1
    assert mutation.old != mutation.new
    assert [name for name in mutation.tests if not (ROOT / "tests" / name).exists()] == []
