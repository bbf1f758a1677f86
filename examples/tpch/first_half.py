"""Queries 1 to 11; `examples.tpch.queries` says how they are written."""

from __future__ import annotations

import dask.dataframe as dd
import pandas as pd

from examples.tpch.shared import (
    between,
    nations_of,
    one_row,
    ordered,
    price,
    small,
    suppliers_in,
)
from examples.tpch.tables import Tables


def q1(t: Tables) -> dd.DataFrame:
    """Pricing summary report."""
    last = pd.Timestamp("1998-12-01") - pd.Timedelta(days=90)
    lines = t.lineitem[t.lineitem.l_shipdate <= last]
    lines = lines.assign(disc_price=price(lines), charge=price(lines) * (1 + lines.l_tax))
    summary = lines.groupby(["l_returnflag", "l_linestatus"]).agg(
        sum_qty=("l_quantity", "sum"),
        sum_base_price=("l_extendedprice", "sum"),
        sum_disc_price=("disc_price", "sum"),
        sum_charge=("charge", "sum"),
        avg_qty=("l_quantity", "mean"),
        avg_price=("l_extendedprice", "mean"),
        avg_disc=("l_discount", "mean"),
        count_order=("l_quantity", "count"),
        split_out=1,
    )
    return ordered(summary.reset_index(), ["l_returnflag", "l_linestatus"])


def q2(t: Tables) -> dd.DataFrame:
    """Minimum cost supplier."""
    parts = t.part[(t.part.p_size == 15) & t.part.p_type.str.endswith("BRASS")]
    suppliers = t.supplier.merge(
        nations_of(t, "EUROPE"), left_on="s_nationkey", right_on="n_nationkey"
    )
    offers = (
        t.partsupp[["ps_partkey", "ps_suppkey", "ps_supplycost"]]
        .merge(small(parts[["p_partkey", "p_mfgr"]]), left_on="ps_partkey", right_on="p_partkey")
        .merge(suppliers, left_on="ps_suppkey", right_on="s_suppkey", broadcast=False)
    )
    offers = small(offers)  # one in 1250 of partsupp
    cheapest = offers.groupby("p_partkey").agg(cheapest=("ps_supplycost", "min"), split_out=1)
    best = offers.merge(cheapest.reset_index(), on="p_partkey")
    best = best[best.ps_supplycost == best.cheapest][
        [
            *("s_acctbal", "s_name", "n_name", "p_partkey"),
            *("p_mfgr", "s_address", "s_phone", "s_comment"),
        ]
    ]
    by = ["s_acctbal", "n_name", "s_name", "p_partkey"]
    return ordered(best, by, [False, True, True, True], n=100)


def q3(t: Tables) -> dd.DataFrame:
    """Shipping priority."""
    date = pd.Timestamp("1995-03-15")
    customers = t.customer[t.customer.c_mktsegment == "BUILDING"][["c_custkey"]]
    orders = t.orders[t.orders.o_orderdate < date].merge(
        customers, left_on="o_custkey", right_on="c_custkey", broadcast=False
    )
    lines = t.lineitem[t.lineitem.l_shipdate > date]
    lines = lines.assign(revenue=price(lines))[["l_orderkey", "revenue"]]
    found = lines.merge(
        orders[["o_orderkey", "o_orderdate", "o_shippriority"]],
        left_on="l_orderkey",
        right_on="o_orderkey",
        broadcast=False,
    )
    by = ["l_orderkey", "o_orderdate", "o_shippriority"]
    revenue = found.groupby(by).revenue.sum(split_out=True).reset_index()
    revenue = revenue[["l_orderkey", "revenue", "o_orderdate", "o_shippriority"]]
    return ordered(revenue, ["revenue", "o_orderdate"], [False, True], n=10)


def q4(t: Tables) -> dd.DataFrame:
    """Order priority checking."""
    orders = t.orders[between(t.orders.o_orderdate, "1993-07-01", "1993-10-01")]
    late = t.lineitem[t.lineitem.l_commitdate < t.lineitem.l_receiptdate]
    found = orders[["o_orderkey", "o_orderpriority"]].merge(
        late[["l_orderkey"]],
        how="leftsemi",
        left_on="o_orderkey",
        right_on="l_orderkey",
        broadcast=False,
    )
    counts = found.groupby("o_orderpriority").agg(order_count=("o_orderkey", "count"), split_out=1)
    return ordered(counts.reset_index(), "o_orderpriority")


def q5(t: Tables) -> dd.DataFrame:
    """Local supplier volume."""
    nations = nations_of(t, "ASIA")
    suppliers = t.supplier.merge(nations, left_on="s_nationkey", right_on="n_nationkey")
    customers = t.customer.merge(
        nations[["n_nationkey"]], left_on="c_nationkey", right_on="n_nationkey"
    )
    orders = t.orders[between(t.orders.o_orderdate, "1994-01-01", "1995-01-01")].merge(
        customers[["c_custkey", "c_nationkey"]],
        left_on="o_custkey",
        right_on="c_custkey",
        broadcast=False,
    )
    lines = t.lineitem.assign(revenue=price(t.lineitem))
    found = lines[["l_orderkey", "l_suppkey", "revenue"]].merge(
        orders[["o_orderkey", "c_nationkey"]],
        left_on="l_orderkey",
        right_on="o_orderkey",
        broadcast=False,
    )
    local = found.merge(
        suppliers[["s_suppkey", "s_nationkey", "n_name"]],
        left_on=["l_suppkey", "c_nationkey"],
        right_on=["s_suppkey", "s_nationkey"],
        broadcast=False,
    )
    revenue = local.groupby("n_name").revenue.sum(split_out=1).reset_index()
    return ordered(revenue, "revenue", ascending=False)


def q6(t: Tables) -> dd.DataFrame:
    """Forecasting revenue change."""
    lines = t.lineitem[
        between(t.lineitem.l_shipdate, "1994-01-01", "1995-01-01")
        & t.lineitem.l_discount.between(0.05, 0.07)
        & (t.lineitem.l_quantity < 24)
    ]
    return one_row((lines.l_extendedprice * lines.l_discount).sum(), "revenue")


def q7(t: Tables) -> dd.DataFrame:
    """Volume shipping."""
    nations = t.nation[t.nation.n_name.isin(["FRANCE", "GERMANY"])][["n_nationkey", "n_name"]]
    suppliers = t.supplier.merge(
        nations.rename(columns={"n_name": "supp_nation"}),
        left_on="s_nationkey",
        right_on="n_nationkey",
    )
    customers = t.customer.merge(
        nations.rename(columns={"n_name": "cust_nation"}),
        left_on="c_nationkey",
        right_on="n_nationkey",
    )
    orders = t.orders[["o_orderkey", "o_custkey"]].merge(
        customers[["c_custkey", "cust_nation"]],
        left_on="o_custkey",
        right_on="c_custkey",
        broadcast=False,
    )
    lines = t.lineitem[between(t.lineitem.l_shipdate, "1995-01-01", "1997-01-01")]
    lines = lines.assign(l_year=lines.l_shipdate.dt.year, volume=price(lines))
    trade = (
        lines[["l_orderkey", "l_suppkey", "l_year", "volume"]]
        .merge(
            small(suppliers[["s_suppkey", "supp_nation"]]),
            left_on="l_suppkey",
            right_on="s_suppkey",
        )
        .merge(
            orders[["o_orderkey", "cust_nation"]],
            left_on="l_orderkey",
            right_on="o_orderkey",
            broadcast=False,
        )
    )
    by = ["supp_nation", "cust_nation", "l_year"]
    trade = trade[trade.supp_nation != trade.cust_nation]
    revenue = trade.groupby(by).agg(revenue=("volume", "sum"), split_out=1)
    return ordered(revenue.reset_index(), by)


def q8(t: Tables) -> dd.DataFrame:
    """National market share."""
    parts = t.part[t.part.p_type == "ECONOMY ANODIZED STEEL"]
    customers = t.customer.merge(
        nations_of(t, "AMERICA"), left_on="c_nationkey", right_on="n_nationkey"
    )
    orders = t.orders[between(t.orders.o_orderdate, "1995-01-01", "1997-01-01")].merge(
        customers[["c_custkey"]], left_on="o_custkey", right_on="c_custkey", broadcast=False
    )
    suppliers = t.supplier.merge(
        t.nation[["n_nationkey", "n_name"]], left_on="s_nationkey", right_on="n_nationkey"
    )
    lines = t.lineitem.assign(volume=price(t.lineitem))
    sold = (
        lines[["l_orderkey", "l_partkey", "l_suppkey", "volume"]]
        .merge(small(parts[["p_partkey"]]), left_on="l_partkey", right_on="p_partkey")
        .merge(
            orders[["o_orderkey", "o_orderdate"]],
            left_on="l_orderkey",
            right_on="o_orderkey",
            broadcast=False,
        )
        .merge(
            suppliers[["s_suppkey", "n_name"]],
            left_on="l_suppkey",
            right_on="s_suppkey",
            broadcast=False,
        )
    )
    sold = sold.assign(
        o_year=sold.o_orderdate.dt.year, brazil=sold.volume.where(sold.n_name == "BRAZIL", 0.0)
    )
    years = sold.groupby("o_year")[["brazil", "volume"]].sum(split_out=1).reset_index()
    years = years.assign(mkt_share=years.brazil / years.volume)
    return ordered(years[["o_year", "mkt_share"]], "o_year")


def q9(t: Tables) -> dd.DataFrame:
    """Product type profit measure."""
    parts = t.part[t.part.p_name.str.contains("green", regex=False)]
    parts = small(parts[["p_partkey"]])
    costs = t.partsupp[["ps_partkey", "ps_suppkey", "ps_supplycost"]].merge(
        parts, left_on="ps_partkey", right_on="p_partkey"
    )
    suppliers = t.supplier.merge(
        t.nation[["n_nationkey", "n_name"]], left_on="s_nationkey", right_on="n_nationkey"
    )
    lines = t.lineitem.assign(price=price(t.lineitem))
    sold = (
        lines[["l_orderkey", "l_partkey", "l_suppkey", "l_quantity", "price"]]
        .merge(parts, left_on="l_partkey", right_on="p_partkey")
        .merge(
            costs[["ps_partkey", "ps_suppkey", "ps_supplycost"]],
            left_on=["l_partkey", "l_suppkey"],
            right_on=["ps_partkey", "ps_suppkey"],
            broadcast=False,
        )
        .merge(
            suppliers[["s_suppkey", "n_name"]],
            left_on="l_suppkey",
            right_on="s_suppkey",
            broadcast=False,
        )
        .merge(
            t.orders[["o_orderkey", "o_orderdate"]],
            left_on="l_orderkey",
            right_on="o_orderkey",
            broadcast=False,
        )
    )
    sold = sold.assign(
        nation=sold.n_name,
        o_year=sold.o_orderdate.dt.year,
        amount=sold.price - sold.ps_supplycost * sold.l_quantity,
    )
    profit = sold.groupby(["nation", "o_year"]).agg(sum_profit=("amount", "sum"), split_out=1)
    return ordered(profit.reset_index(), ["nation", "o_year"], [True, False])


def q10(t: Tables) -> dd.DataFrame:
    """Returned item reporting."""
    orders = t.orders[between(t.orders.o_orderdate, "1993-10-01", "1994-01-01")]
    lines = t.lineitem[t.lineitem.l_returnflag == "R"]
    lines = lines.assign(revenue=price(lines))[["l_orderkey", "revenue"]]
    returned = lines.merge(
        orders[["o_orderkey", "o_custkey"]],
        left_on="l_orderkey",
        right_on="o_orderkey",
        broadcast=False,
    )
    lost = returned.groupby("o_custkey").revenue.sum(split_out=True).reset_index()
    # Only twenty customers are looked up.
    top = ordered(lost, "revenue", ascending=False, n=20).merge(
        t.customer, left_on="o_custkey", right_on="c_custkey"
    )
    top = top.merge(t.nation, left_on="c_nationkey", right_on="n_nationkey")[
        [
            *("c_custkey", "c_name", "revenue", "c_acctbal"),
            *("n_name", "c_address", "c_phone", "c_comment"),
        ]
    ]
    return ordered(top, "revenue", ascending=False)


def q11(t: Tables) -> dd.DataFrame:
    """Important stock identification."""
    stock = t.partsupp.merge(
        suppliers_in(t, "GERMANY")[["s_suppkey"]], left_on="ps_suppkey", right_on="s_suppkey"
    )
    stock = stock.assign(value=stock.ps_supplycost * stock.ps_availqty)
    enough = stock.value.sum() * (0.0001 / t.scale)
    values = stock.groupby("ps_partkey").value.sum(split_out=True).reset_index()
    return ordered(values[values.value > enough], "value", ascending=False)
