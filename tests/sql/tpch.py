"""TPC-H: small data whose rows come, change and go, and parameters for its queries."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from typing import Any

import pyarrow as pa

from bench.tpch.data import queries
from tests.sql.tables import Change, Row, Tables

D = decimal.Decimal
money = pa.decimal128(12, 2)
S, INT, L = pa.string(), pa.int32(), pa.int64()
SCHEMAS = {
    "region": pa.schema([("r_regionkey", L), ("r_name", S), ("r_comment", S)]),
    "nation": pa.schema([("n_nationkey", L), ("n_name", S), ("n_regionkey", L), ("n_comment", S)]),
    "supplier": pa.schema(
        [
            ("s_suppkey", L),
            ("s_name", S),
            ("s_address", S),
            ("s_nationkey", L),
            ("s_phone", S),
            ("s_acctbal", money),
            ("s_comment", S),
        ]
    ),
    "customer": pa.schema(
        [
            ("c_custkey", L),
            ("c_name", S),
            ("c_address", S),
            ("c_nationkey", L),
            ("c_phone", S),
            ("c_acctbal", money),
            ("c_mktsegment", S),
            ("c_comment", S),
        ]
    ),
    "part": pa.schema(
        [
            ("p_partkey", L),
            ("p_name", S),
            ("p_mfgr", S),
            ("p_brand", S),
            ("p_type", S),
            ("p_size", INT),
            ("p_container", S),
            ("p_retailprice", money),
            ("p_comment", S),
        ]
    ),
    "partsupp": pa.schema(
        [
            ("ps_partkey", L),
            ("ps_suppkey", L),
            ("ps_availqty", INT),
            ("ps_supplycost", money),
            ("ps_comment", S),
        ]
    ),
    "orders": pa.schema(
        [
            ("o_orderkey", L),
            ("o_custkey", L),
            ("o_orderstatus", S),
            ("o_totalprice", money),
            ("o_orderdate", pa.date32()),
            ("o_orderpriority", S),
            ("o_clerk", S),
            ("o_shippriority", INT),
            ("o_comment", S),
        ]
    ),
    "lineitem": pa.schema(
        [
            ("l_orderkey", L),
            ("l_partkey", L),
            ("l_suppkey", L),
            ("l_linenumber", INT),
            ("l_quantity", money),
            ("l_extendedprice", money),
            ("l_discount", money),
            ("l_tax", money),
            ("l_returnflag", S),
            ("l_linestatus", S),
            ("l_shipdate", pa.date32()),
            ("l_commitdate", pa.date32()),
            ("l_receiptdate", pa.date32()),
            ("l_shipinstruct", S),
            ("l_shipmode", S),
            ("l_comment", S),
        ]
    ),
}
KEYS = {
    "region": ("r_regionkey",),
    "nation": ("n_nationkey",),
    "supplier": ("s_suppkey",),
    "customer": ("c_custkey",),
    "part": ("p_partkey",),
    "partsupp": ("ps_partkey", "ps_suppkey"),
    "orders": ("o_orderkey",),
    "lineitem": ("l_orderkey", "l_linenumber"),
}
REGIONS = ["AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST"]
NATIONS = [
    ("FRANCE", 3),
    ("GERMANY", 3),
    ("BRAZIL", 1),
    ("CANADA", 1),
    ("SAUDI ARABIA", 4),
    ("CHINA", 2),
    ("INDIA", 2),
    ("KENYA", 0),
]


class _Rows:
    """Random rows of each table by key."""

    def __init__(self, rng: random.Random, scale: float) -> None:
        self._rng = rng
        self.suppliers, self.customers = int(10 * scale), int(18 * scale)
        self.parts, self.orders = int(24 * scale), int(90 * scale)

    def _money(self, low: int, high: int) -> D:
        return D(self._rng.randrange(low * 100, high * 100)) / 100

    def _day(self, first: int, last: int) -> dt.date:
        return dt.date(1992, 1, 1) + dt.timedelta(days=self._rng.randrange(first, last))

    def of(self, table: str, key: Any) -> Row:
        """A row with this key."""
        row: Row = getattr(self, table)(key)
        return row

    def region(self, key: int) -> Row:
        return key, REGIONS[key], "c"

    def nation(self, key: int) -> Row:
        return key, NATIONS[key][0], NATIONS[key][1], "c"

    def supplier(self, key: int) -> Row:
        r = self._rng
        said = r.choice(["ok", "x Customer y Complaints z", "fine"])
        return (
            key,
            f"Supplier#{key}",
            "addr",
            r.randrange(8),
            f"{r.randrange(10, 34)}-1",
            self._money(-900, 9000),
            said,
        )

    def customer(self, key: int) -> Row:
        r = self._rng
        phone = f"{r.choice([13, 31, 23, 29, 30, 18, 17, 11])}-2"
        segment = r.choice(["BUILDING", "AUTOMOBILE"])
        return key, f"Customer#{key}", "addr", r.randrange(8), phone, self._money(-900, 9000), segment, "c"

    def part(self, key: int) -> Row:
        r = self._rng
        kinds = [
            "PROMO BRUSHED COPPER",
            "ECONOMY ANODIZED STEEL",
            "MEDIUM POLISHED BRASS",
            "SMALL PLATED BRASS",
        ]
        return (
            key,
            r.choice(["forest green", "green lace", "forest blue", "red"]),
            f"Manufacturer#{r.randrange(1, 3)}",
            r.choice(["Brand#12", "Brand#23", "Brand#34", "Brand#45"]),
            r.choice(kinds),
            r.choice([1, 3, 5, 9, 14, 15, 23, 45, 49]),
            r.choice(["SM CASE", "MED BOX", "LG BOX", "SM PACK"]),
            self._money(900, 2000),
            "c",
        )

    def partsupp(self, key: tuple[int, int]) -> Row:
        return *key, self._rng.randrange(1, 10_000), self._money(1, 1000), "c"

    def order(self, key: int) -> Row:
        r = self._rng
        customer = r.choice([one for one in range(self.customers) if one % 3])
        priority = r.choice(["1-URGENT", "2-HIGH", "3-MEDIUM", "5-LOW"])
        said = r.choice(["ok", "a special b requests c"])
        return (
            key,
            customer,
            r.choice("OFP"),
            self._money(1000, 90_000),
            self._day(0, 2400),
            priority,
            "clerk",
            0,
            said,
        )

    def lineitem(self, key: tuple[int, int]) -> Row:
        r, ship = self._rng, self._day(30, 2500)
        return (
            key[0],
            r.randrange(self.parts),
            r.randrange(self.suppliers),
            key[1],
            D(r.randrange(1, 51)),
            self._money(900, 50_000),
            D(r.randrange(0, 11)) / 100,
            D(r.randrange(0, 9)) / 100,
            r.choice("RAN"),
            r.choice("OF"),
            ship,
            ship + dt.timedelta(days=r.randrange(-30, 60)),
            ship + dt.timedelta(days=r.randrange(1, 31)),
            r.choice(["DELIVER IN PERSON", "NONE"]),
            r.choice(["MAIL", "SHIP", "AIR", "AIR REG", "TRUCK"]),
            "c",
        )


def changing_tables(seed: int = 7, batches: int = 4, scale: float = 1.0) -> Tables:
    """All tables grow until the last micro-batch but one; a fifth of the rows there changes or goes each time."""
    rng = random.Random(seed)
    rows = _Rows(rng, scale)
    keys: dict[str, list[Any]] = {
        "region": list(range(5)),
        "nation": list(range(8)),
        "supplier": list(range(rows.suppliers)),
        "customer": list(range(rows.customers)),
        "part": list(range(rows.parts)),
        "partsupp": [(p, s) for p in range(rows.parts) for s in rng.sample(range(rows.suppliers), 3)],
        "orders": list(range(rows.orders)),
        "lineitem": [(o, n) for o in range(rows.orders) for n in range(1, rng.randrange(2, 7))],
    }
    made = {"orders": "order"}
    there: dict[str, dict[Any, Row]] = {name: {} for name in SCHEMAS}
    changes: dict[str, list[list[Change]]] = {name: [] for name in SCHEMAS}
    todo = {name: rng.sample(keys[name], len(keys[name])) for name in SCHEMAS}
    for batch in range(batches):
        for name, table in there.items():
            out: list[Change] = []
            count = {batches - 2: len(todo[name]), batches - 1: 0}.get(batch, max(1, len(todo[name]) // 2))
            new = [todo[name].pop() for _ in range(min(count, len(todo[name])))]
            old = list(table)
            for key in new:
                table[key] = rows.of(made.get(name, name), key)
                out.append(("+I", table[key]))
            for key in rng.sample(old, len(old) // 5):
                before = table[key]
                if name in ("region", "nation"):
                    table[key] = (*before[:-1], f"c{batch}")
                    out += [("-U", before), ("+U", table[key])]
                elif rng.random() < 0.6:
                    table[key] = rows.of(made.get(name, name), key)
                    out += [("-U", before), ("+U", table[key])]
                else:
                    out.append(("-D", before))
                    del table[key]
                    todo[name].append(key)
            rng.shuffle(out)
            changes[name].append(out)
    return Tables(SCHEMAS, changes, keys=KEYS)


PARAMETERS = {
    "q2": {"size": "p_size in (15, 9, 14, 3)"},
    "q4": {"months": "interval '24' month"},
    "q5": {"from": "date '1992-01-01'", "to": "date '1998-01-01'"},
    "q6": {"discounts": "0.05 - 0.01 and 0.06 + 0.01"},
    "q7": {"more": " or n1.n_name = 'CHINA'", "from": "date '1992-01-01'", "to": "date '1998-12-31'"},
    "q8": {"from": "date '1992-01-01'", "to": "date '1998-12-31'"},
    "q10": {"from": "date '1992-10-01'", "to": "date '1996-10-01'"},
    "q11": {"share": "0.1"},
    "q12": {"from": "date '1992-01-01'", "to": "date '1997-01-01'"},
    "q14": {"from": "date '1995-01-01'"},
    "q15": {"from": "date '1995-01-01'", "months": "interval '12' month"},
    "q17": {
        "parts": "p_brand in ('Brand#23', 'Brand#12') and p_container in ('MED BOX', 'SM CASE')",
        "share": "0.6",
    },
    "q18": {"quantity": "> 90"},
    "q19": {
        "small": "31",
        "small_size": "15",
        "medium": "40",
        "medium_size": "30",
        "large": "50",
        "large_size": "50",
    },
    "q20": {
        "from": "date '1992-01-01'",
        "to": "date '1994-01-01' + interval '5' year",
        "nations": "n_name in ('CANADA', 'FRANCE', 'CHINA')",
    },
    "q21": {
        "status": "o_orderstatus in ('F', 'O')",
        "nations": "n_name in ('SAUDI ARABIA', 'FRANCE', 'BRAZIL')",
    },
}
"""Of the queries, so that the small data has rows for them."""
QUERIES = queries(PARAMETERS)
