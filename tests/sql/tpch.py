# ruff: noqa: E501  # statements are data
"""TPC-H: small data whose rows come, change and go, and its 22 queries, with parameters that fit the data."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from typing import Any

import pyarrow as pa

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


QUERIES = {
    "q1": """select l_returnflag, l_linestatus, sum(l_quantity) as sum_qty, sum(l_extendedprice) as sum_base_price, sum(l_extendedprice * (1 - l_discount)) as sum_disc_price,
 sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) as sum_charge, avg(l_quantity) as avg_qty, avg(l_extendedprice) as avg_price, avg(l_discount) as avg_disc, count(*) as count_order
 from lineitem where l_shipdate <= date '1998-12-01' - interval '90' day group by l_returnflag, l_linestatus order by l_returnflag, l_linestatus""",
    "q2": """select s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment from part, supplier, partsupp, nation, region
 where p_partkey = ps_partkey and s_suppkey = ps_suppkey and p_size in (15, 9, 14, 3) and p_type like '%BRASS' and s_nationkey = n_nationkey and n_regionkey = r_regionkey and r_name = 'EUROPE'
 and ps_supplycost = (select min(ps_supplycost) from partsupp, supplier, nation, region where p_partkey = ps_partkey and s_suppkey = ps_suppkey and s_nationkey = n_nationkey and n_regionkey = r_regionkey and r_name = 'EUROPE')
 order by s_acctbal desc, n_name, s_name, p_partkey limit 100""",
    "q3": """select l_orderkey, sum(l_extendedprice * (1 - l_discount)) as revenue, o_orderdate, o_shippriority from customer, orders, lineitem
 where c_mktsegment = 'BUILDING' and c_custkey = o_custkey and l_orderkey = o_orderkey and o_orderdate < date '1995-03-15' and l_shipdate > date '1995-03-15'
 group by l_orderkey, o_orderdate, o_shippriority order by revenue desc, o_orderdate, l_orderkey limit 10""",
    "q4": """select o_orderpriority, count(*) as order_count from orders where o_orderdate >= date '1993-07-01' and o_orderdate < date '1993-07-01' + interval '24' month
 and exists (select * from lineitem where l_orderkey = o_orderkey and l_commitdate < l_receiptdate) group by o_orderpriority order by o_orderpriority""",
    "q5": """select n_name, sum(l_extendedprice * (1 - l_discount)) as revenue from customer, orders, lineitem, supplier, nation, region
 where c_custkey = o_custkey and l_orderkey = o_orderkey and l_suppkey = s_suppkey and c_nationkey = s_nationkey and s_nationkey = n_nationkey and n_regionkey = r_regionkey and r_name = 'ASIA'
 and o_orderdate >= date '1992-01-01' and o_orderdate < date '1998-01-01' group by n_name order by revenue desc""",
    "q6": """select sum(l_extendedprice * l_discount) as revenue from lineitem where l_shipdate >= date '1994-01-01' and l_shipdate < date '1994-01-01' + interval '1' year and l_discount between 0.05 - 0.01 and 0.06 + 0.01 and l_quantity < 24""",
    "q7": """select supp_nation, cust_nation, l_year, sum(volume) as revenue from (select n1.n_name as supp_nation, n2.n_name as cust_nation, extract(year from l_shipdate) as l_year, l_extendedprice * (1 - l_discount) as volume
 from supplier, lineitem, orders, customer, nation n1, nation n2 where s_suppkey = l_suppkey and o_orderkey = l_orderkey and c_custkey = o_custkey and s_nationkey = n1.n_nationkey and c_nationkey = n2.n_nationkey
 and ((n1.n_name = 'FRANCE' and n2.n_name = 'GERMANY') or (n1.n_name = 'GERMANY' and n2.n_name = 'FRANCE') or n1.n_name = 'CHINA') and l_shipdate between date '1992-01-01' and date '1998-12-31') as shipping
 group by supp_nation, cust_nation, l_year order by supp_nation, cust_nation, l_year""",
    "q8": """select o_year, sum(case when nation = 'BRAZIL' then volume else 0 end) / sum(volume) as mkt_share from (select extract(year from o_orderdate) as o_year, l_extendedprice * (1 - l_discount) as volume, n2.n_name as nation
 from part, supplier, lineitem, orders, customer, nation n1, nation n2, region where p_partkey = l_partkey and s_suppkey = l_suppkey and l_orderkey = o_orderkey and o_custkey = c_custkey and c_nationkey = n1.n_nationkey
 and n1.n_regionkey = r_regionkey and r_name = 'AMERICA' and s_nationkey = n2.n_nationkey and o_orderdate between date '1992-01-01' and date '1998-12-31' and p_type = 'ECONOMY ANODIZED STEEL') as all_nations group by o_year order by o_year""",
    "q9": """select nation, o_year, sum(amount) as sum_profit from (select n_name as nation, extract(year from o_orderdate) as o_year, l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity as amount
 from part, supplier, lineitem, partsupp, orders, nation where s_suppkey = l_suppkey and ps_suppkey = l_suppkey and ps_partkey = l_partkey and p_partkey = l_partkey and o_orderkey = l_orderkey and s_nationkey = n_nationkey and p_name like '%green%') as profit
 group by nation, o_year order by nation, o_year desc""",
    "q10": """select c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) as revenue, c_acctbal, n_name, c_address, c_phone, c_comment from customer, orders, lineitem, nation
 where c_custkey = o_custkey and l_orderkey = o_orderkey and o_orderdate >= date '1992-10-01' and o_orderdate < date '1996-10-01' and l_returnflag = 'R' and c_nationkey = n_nationkey
 group by c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment order by revenue desc, c_custkey limit 20""",
    "q11": """select ps_partkey, sum(ps_supplycost * ps_availqty) as value from partsupp, supplier, nation where ps_suppkey = s_suppkey and s_nationkey = n_nationkey and n_name = 'GERMANY' group by ps_partkey
 having sum(ps_supplycost * ps_availqty) > (select sum(ps_supplycost * ps_availqty) * 0.1 from partsupp, supplier, nation where ps_suppkey = s_suppkey and s_nationkey = n_nationkey and n_name = 'GERMANY') order by value desc""",
    "q12": """select l_shipmode, sum(case when o_orderpriority = '1-URGENT' or o_orderpriority = '2-HIGH' then 1 else 0 end) as high_line_count, sum(case when o_orderpriority <> '1-URGENT' and o_orderpriority <> '2-HIGH' then 1 else 0 end) as low_line_count
 from orders, lineitem where o_orderkey = l_orderkey and l_shipmode in ('MAIL', 'SHIP') and l_commitdate < l_receiptdate and l_shipdate < l_commitdate and l_receiptdate >= date '1992-01-01' and l_receiptdate < date '1997-01-01' group by l_shipmode order by l_shipmode""",
    "q13": """select c_count, count(*) as custdist from (select c_custkey, count(o_orderkey) as c_count from customer left outer join orders on c_custkey = o_custkey and o_comment not like '%special%requests%' group by c_custkey) as c_orders
 group by c_count order by custdist desc, c_count desc""",
    "q14": """select 100.00 * sum(case when p_type like 'PROMO%' then l_extendedprice * (1 - l_discount) else 0 end) / sum(l_extendedprice * (1 - l_discount)) as promo_revenue from lineitem, part where l_partkey = p_partkey and l_shipdate >= date '1995-01-01' and l_shipdate < date '1995-09-01' + interval '1' month""",
    "q15": """with revenue as (select l_suppkey as supplier_no, sum(l_extendedprice * (1 - l_discount)) as total_revenue from lineitem where l_shipdate >= date '1995-01-01' and l_shipdate < date '1995-01-01' + interval '12' month group by l_suppkey)
 select s_suppkey, s_name, s_address, s_phone, total_revenue from supplier, revenue where s_suppkey = supplier_no and total_revenue = (select max(total_revenue) from revenue) order by s_suppkey""",
    "q16": """select p_brand, p_type, p_size, count(distinct ps_suppkey) as supplier_cnt from partsupp, part where p_partkey = ps_partkey and p_brand <> 'Brand#45' and p_type not like 'MEDIUM POLISHED%' and p_size in (49, 14, 23, 45, 19, 3, 36, 9)
 and ps_suppkey not in (select s_suppkey from supplier where s_comment like '%Customer%Complaints%') group by p_brand, p_type, p_size order by supplier_cnt desc, p_brand, p_type, p_size""",
    "q17": """select sum(l_extendedprice) / 7.0 as avg_yearly from lineitem, part where p_partkey = l_partkey and p_brand in ('Brand#23', 'Brand#12') and p_container in ('MED BOX', 'SM CASE') and l_quantity < (select 0.6 * avg(l_quantity) from lineitem where l_partkey = p_partkey)""",
    "q18": """select c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) from customer, orders, lineitem where o_orderkey in (select l_orderkey from lineitem group by l_orderkey having sum(l_quantity) > 90)
 and c_custkey = o_custkey and o_orderkey = l_orderkey group by c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice order by o_totalprice desc, o_orderdate, o_orderkey limit 100""",
    "q19": """select sum(l_extendedprice * (1 - l_discount)) as revenue from lineitem, part where (p_partkey = l_partkey and p_brand = 'Brand#12' and p_container in ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG') and l_quantity >= 1 and l_quantity <= 31 and p_size between 1 and 15 and l_shipmode in ('AIR', 'AIR REG') and l_shipinstruct = 'DELIVER IN PERSON')
 or (p_partkey = l_partkey and p_brand = 'Brand#23' and p_container in ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK') and l_quantity >= 10 and l_quantity <= 40 and p_size between 1 and 30 and l_shipmode in ('AIR', 'AIR REG') and l_shipinstruct = 'DELIVER IN PERSON')
 or (p_partkey = l_partkey and p_brand = 'Brand#34' and p_container in ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG') and l_quantity >= 20 and l_quantity <= 50 and p_size between 1 and 50 and l_shipmode in ('AIR', 'AIR REG') and l_shipinstruct = 'DELIVER IN PERSON')""",
    "q20": """select s_name, s_address from supplier, nation where s_suppkey in (select ps_suppkey from partsupp where ps_partkey in (select p_partkey from part where p_name like 'forest%')
 and ps_availqty > (select 0.5 * sum(l_quantity) from lineitem where l_partkey = ps_partkey and l_suppkey = ps_suppkey and l_shipdate >= date '1992-01-01' and l_shipdate < date '1994-01-01' + interval '5' year)) and s_nationkey = n_nationkey and n_name in ('CANADA', 'FRANCE', 'CHINA') order by s_name""",
    "q21": """select s_name, count(*) as numwait from supplier, lineitem l1, orders, nation where s_suppkey = l1.l_suppkey and o_orderkey = l1.l_orderkey and o_orderstatus in ('F', 'O') and l1.l_receiptdate > l1.l_commitdate
 and exists (select * from lineitem l2 where l2.l_orderkey = l1.l_orderkey and l2.l_suppkey <> l1.l_suppkey) and not exists (select * from lineitem l3 where l3.l_orderkey = l1.l_orderkey and l3.l_suppkey <> l1.l_suppkey and l3.l_receiptdate > l3.l_commitdate)
 and s_nationkey = n_nationkey and n_name in ('SAUDI ARABIA', 'FRANCE', 'BRAZIL') group by s_name order by numwait desc, s_name limit 100""",
    "q22": """select cntrycode, count(*) as numcust, sum(c_acctbal) as totacctbal from (select substring(c_phone, 1, 2) as cntrycode, c_acctbal from customer where substring(c_phone, 1, 2) in ('13', '31', '23', '29', '30', '18', '17')
 and c_acctbal > (select avg(c_acctbal) from customer where c_acctbal > 0.00 and substring(c_phone, 1, 2) in ('13', '31', '23', '29', '30', '18', '17')) and not exists (select * from orders where o_custkey = c_custkey)) as custsale group by cntrycode order by cntrycode""",
}
