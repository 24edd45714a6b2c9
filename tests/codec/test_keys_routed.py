"""Keys that are routed by some of their columns: the group is that of these columns alone, in both grains."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.codec import KeyCodec

TYPES = [pa.int64(), pa.string(), pa.bool_()]
NAMES = ["a", "b", "c"]
ROWS = st.lists(
    st.tuples(st.none() | st.integers(-9, 9), st.none() | st.text(max_size=3), st.none() | st.booleans()),
    min_size=1,
    max_size=30,
)


@given(ROWS, st.permutations([0, 1, 2]), st.integers(1, 3), st.sampled_from([1, 7, 128]))
def test_the_group_is_that_of_the_columns_routed_by(
    rows: list[tuple[object, ...]], order: list[int], count: int, groups: int
) -> None:
    route = order[:count]
    columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), TYPES, strict=True)]
    codec = KeyCodec(TYPES, NAMES, groups, route)
    alone = KeyCodec([TYPES[at] for at in route], [NAMES[at] for at in route], groups)
    expected = alone.groups([columns[at] for at in route])
    assert codec.groups(columns).tolist() == expected.tolist()
    prefixes = [int(group).to_bytes(2, "big") for group in expected]
    assert [codec.group_prefix_one(row) for row in rows] == prefixes
    plain = [codec.encode_one(row) for row in rows]
    found = codec.group(columns)
    stored = found.store_keys(7)
    expected_keys = [one + b"\x07" + two for one, two in zip(prefixes, plain, strict=True)]
    assert [stored[at] for at in found.inverse] == expected_keys
    assert found.groups.tolist() == sorted(found.groups.tolist())
