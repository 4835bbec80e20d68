"""The recorded processors whose families have tests of their own in other forms."""

import pytest

from tests.oracles.families import FAMILIES
from tests.support.families import GOLDEN, assert_equals_processor, cases


@pytest.mark.parametrize(("name", "index"), cases("internvl", "inkling", "inkling_doubling"))
def test_ids_and_tensors_equal_the_processor(name, index):
    assert_equals_processor(name, index)


def test_every_recorded_family_is_one_that_the_oracles_run():
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(FAMILIES)
