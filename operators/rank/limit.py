"""Limit and SortLimit: the first rows of everything, by arrival or in an order, kept up to date.

Owns: both operators. They are rankings without a key whose numbers are not put out; see ``Rank``.
Must not import anything of ``asyncstate`` but ``errors`` and ``operator``.

Source: Flink's ``StreamExecLimit`` and ``StreamExecSortLimit``, which are rankings there, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from asyncstate.errors import SchemaError
from asyncstate.operator import InputSpec

from ..core.ordering import ARRIVAL, OrderBy
from .operator import Rank


class SortLimit(Rank):
    """SQL's ORDER BY .. LIMIT over all rows: those with the places offset + 1 to offset + ``n`` in ``order_by``.

    ``order_by`` as in ``Rank``; of rows of equal order the one that came first is the first. The input has no key, so
    one partition has all rows; over an insert-only input only offset + n of them are stored, and on Spark only as many
    travel (``Rank``'s local limit).

    Output: the input's columns, +I for rows that enter, -D for rows that leave: the net change of a bundle, first what
    is taken back. A changelog input takes rows back by their whole content, and the next row comes up.

    >>> from asyncstate.testing import OperatorHarness
    >>> from asyncstate.operators import desc
    >>> bids = pa.schema([("bidder", pa.string()), ("price", pa.int64())])
    >>> with OperatorHarness(SortLimit(desc("price"), 2), bids, None) as harness:
    ...     harness.push([("ann", 5), ("bob", 9), ("eve", 7)])
    ...     print(harness.end_batch())
    ...     harness.push([("bob", 9)], kinds=["-D"])
    ...     print(harness.end_batch())
    [('+I', 'bob', 9), ('+I', 'eve', 7)]
    [('-D', 'bob', 9), ('+I', 'ann', 5)]
    """

    def __init__(self, order_by: OrderBy, n: int, *, offset: int = 0) -> None:
        if isinstance(n, str):
            raise SchemaError(f"{self.owner}: n is {n!r}; give a number from 1 on")
        super().__init__(order_by, n, offset=offset)

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        """The input's columns."""
        spec = inputs[0]
        if spec.key:
            raise SchemaError(
                f"{self.owner}: {spec.name} has the key ({', '.join(spec.key)}), but the limit is one of all rows; "
                "leave the key out, or use Rank for the first rows of each key"
            )
        return super().bind(inputs)


class Limit(SortLimit):
    """SQL's LIMIT over all rows: those with the places offset + 1 to offset + ``n`` in order of arrival.

    Input, output and state are those of ``SortLimit``. Between the rows of a micro-batch there is no order that could
    be relied on; those of earlier ones come first.

    >>> from asyncstate.testing import OperatorHarness
    >>> words = pa.schema([("word", pa.string())])
    >>> with OperatorHarness(Limit(2), words, None) as harness:
    ...     harness.push([("a",), ("b",), ("c",)])
    ...     print(harness.end_batch())
    ...     harness.push([("a",)], kinds=["-D"])
    ...     print(harness.end_batch())
    [('+I', 'a'), ('+I', 'b')]
    [('-D', 'a'), ('+I', 'c')]
    """

    def __init__(self, n: int, *, offset: int = 0) -> None:
        super().__init__(ARRIVAL, n, offset=offset)
