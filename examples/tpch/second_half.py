"""Queries 12 to 22; `examples.tpch.queries` says how they are written."""

from __future__ import annotations

import dask.dataframe as dd

from examples.tpch.shared import between, one_row, ordered, price, small, suppliers_in
from examples.tpch.tables import Tables


def q12(t: Tables) -> dd.DataFrame:
    """Shipping modes and order priority."""
    lines = t.lineitem[
        t.lineitem.l_shipmode.isin(["MAIL", "SHIP"])
        & (t.lineitem.l_commitdate < t.lineitem.l_receiptdate)
        & (t.lineitem.l_shipdate < t.lineitem.l_commitdate)
        & between(t.lineitem.l_receiptdate, "1994-01-01", "1995-01-01")
    ]
    found = lines[["l_orderkey", "l_shipmode"]].merge(
        t.orders[["o_orderkey", "o_orderpriority"]],
        left_on="l_orderkey",
        right_on="o_orderkey",
        broadcast=False,
    )
    high = found.o_orderpriority.isin(["1-URGENT", "2-HIGH"])
    found = found.assign(
        high_line_count=high.astype("int64"), low_line_count=(~high).astype("int64")
    )
    counts = found.groupby("l_shipmode")[["high_line_count", "low_line_count"]].sum(split_out=1)
    return ordered(counts.reset_index(), "l_shipmode")


def q13(t: Tables) -> dd.DataFrame:
    """Customer distribution."""
    orders = t.orders[~t.orders.o_comment.str.contains("special.*requests")]
    counts = orders.groupby("o_custkey").agg({"o_orderkey": "count"}, split_out=True).reset_index()
    customers = t.customer[["c_custkey"]].merge(
        counts, how="left", left_on="c_custkey", right_on="o_custkey", broadcast=False
    )
    customers = customers.assign(c_count=customers.o_orderkey.fillna(0).astype("int64"))
    distribution = customers.groupby("c_count").agg(custdist=("c_custkey", "count"), split_out=1)
    return ordered(distribution.reset_index(), ["custdist", "c_count"], ascending=False)


def q14(t: Tables) -> dd.DataFrame:
    """Promotion effect."""
    lines = t.lineitem[between(t.lineitem.l_shipdate, "1995-09-01", "1995-10-01")]
    sold = lines.assign(revenue=price(lines))[["l_partkey", "revenue"]].merge(
        t.part[["p_partkey", "p_type"]],
        left_on="l_partkey",
        right_on="p_partkey",
        broadcast=False,
    )
    promoted = sold.revenue.where(sold.p_type.str.startswith("PROMO"), 0.0)
    return one_row(100 * promoted.sum() / sold.revenue.sum(), "promo_revenue")


def q15(t: Tables) -> dd.DataFrame:
    """Top supplier."""
    lines = t.lineitem[between(t.lineitem.l_shipdate, "1996-01-01", "1996-04-01")]
    revenue = (
        lines.assign(total_revenue=price(lines))
        .groupby("l_suppkey")
        .total_revenue.sum(split_out=True)
        .round(4)  # as exact as the decimals were, in whatever order they are added
        .reset_index()
    )
    top = small(revenue[revenue.total_revenue == revenue.total_revenue.max()])
    found = t.supplier.merge(top, left_on="s_suppkey", right_on="l_suppkey")
    return ordered(
        found[["s_suppkey", "s_name", "s_address", "s_phone", "total_revenue"]], "s_suppkey"
    )


def q16(t: Tables) -> dd.DataFrame:
    """Parts/supplier relationship."""
    parts = t.part[
        (t.part.p_brand != "Brand#45")
        & ~t.part.p_type.str.startswith("MEDIUM POLISHED")
        & t.part.p_size.isin([49, 14, 23, 45, 19, 3, 36, 9])
    ]
    bad = t.supplier[t.supplier.s_comment.str.contains("Customer.*Complaints")]
    offers = t.partsupp[["ps_partkey", "ps_suppkey"]].merge(
        small(bad[["s_suppkey"]]),
        how="left",
        left_on="ps_suppkey",
        right_on="s_suppkey",
        indicator="complained",
    )
    offers = offers[offers.complained == "left_only"][["ps_partkey", "ps_suppkey"]].merge(
        parts[["p_partkey", "p_brand", "p_type", "p_size"]],
        left_on="ps_partkey",
        right_on="p_partkey",
        broadcast=False,
    )
    by = ["p_brand", "p_type", "p_size"]
    counts = (
        offers.groupby(by).ps_suppkey.nunique(split_out=True).rename("supplier_cnt").reset_index()
    )
    return ordered(counts, ["supplier_cnt", *by], [False, True, True, True])


def q17(t: Tables) -> dd.DataFrame:
    """Small-quantity-order revenue."""
    parts = t.part[(t.part.p_brand == "Brand#23") & (t.part.p_container == "MED BOX")]
    lines = t.lineitem[["l_partkey", "l_quantity", "l_extendedprice"]].merge(
        small(parts[["p_partkey"]]), left_on="l_partkey", right_on="p_partkey"
    )
    usual = lines.groupby("l_partkey").agg(usual=("l_quantity", "mean"), split_out=1)
    lines = lines.merge(usual.reset_index(), on="l_partkey")
    lines = lines[lines.l_quantity < 0.2 * lines.usual]
    return one_row(lines.l_extendedprice.sum(min_count=1) / 7.0, "avg_yearly")  # null if no lines


def q18(t: Tables) -> dd.DataFrame:
    """Large volume customer."""
    sizes = t.lineitem.groupby("l_orderkey").l_quantity.sum(split_out=True).reset_index()
    large = small(sizes[sizes.l_quantity > 300])  # one order in 26 000
    orders = t.orders[["o_orderkey", "o_custkey", "o_orderdate", "o_totalprice"]].merge(
        large, left_on="o_orderkey", right_on="l_orderkey"
    )
    found = t.customer[["c_custkey", "c_name"]].merge(
        small(orders), left_on="c_custkey", right_on="o_custkey"
    )
    found = found.rename(columns={"l_quantity": "sum(l_quantity)"})[
        ["c_name", "c_custkey", "o_orderkey", "o_orderdate", "o_totalprice", "sum(l_quantity)"]
    ]
    return ordered(found, ["o_totalprice", "o_orderdate"], [False, True], n=100)


def q19(t: Tables) -> dd.DataFrame:
    """Discounted revenue."""
    choices = [
        ("Brand#12", ["SM CASE", "SM BOX", "SM PACK", "SM PKG"], 1, 5),
        ("Brand#23", ["MED BAG", "MED BOX", "MED PKG", "MED PACK"], 10, 10),
        ("Brand#34", ["LG CASE", "LG BOX", "LG PACK", "LG PKG"], 20, 15),
    ]
    parts = t.part[["p_partkey", "p_brand", "p_size", "p_container"]]
    kinds = [
        (parts.p_brand == brand)
        & parts.p_container.isin(containers)
        & parts.p_size.between(1, size)
        for brand, containers, _, size in choices
    ]
    parts = small(parts[kinds[0] | kinds[1] | kinds[2]])  # one in 400
    lines = t.lineitem[
        t.lineitem.l_shipmode.isin(["AIR", "AIR REG"])
        & (t.lineitem.l_shipinstruct == "DELIVER IN PERSON")
    ]
    sold = lines.assign(revenue=price(lines))[["l_partkey", "l_quantity", "revenue"]].merge(
        parts, left_on="l_partkey", right_on="p_partkey"
    )
    wanted = [
        (sold.p_brand == brand) & sold.l_quantity.between(quantity, quantity + 10)
        for brand, _, quantity, _ in choices
    ]
    return one_row(sold[wanted[0] | wanted[1] | wanted[2]].revenue.sum(), "revenue")


def q20(t: Tables) -> dd.DataFrame:
    """Potential part promotion."""
    parts = t.part[t.part.p_name.str.startswith("forest")]
    suppliers = suppliers_in(t, "CANADA")[["s_suppkey", "s_name", "s_address"]]
    stock = (
        t.partsupp[["ps_partkey", "ps_suppkey", "ps_availqty"]]
        .merge(suppliers[["s_suppkey"]], left_on="ps_suppkey", right_on="s_suppkey")
        .merge(small(parts[["p_partkey"]]), left_on="ps_partkey", right_on="p_partkey")
    )
    lines = t.lineitem[between(t.lineitem.l_shipdate, "1994-01-01", "1995-01-01")]
    shipped = lines[["l_partkey", "l_suppkey", "l_quantity"]].merge(
        small(stock[["ps_partkey", "ps_suppkey", "ps_availqty"]]),  # one in 2300 of partsupp
        left_on=["l_partkey", "l_suppkey"],
        right_on=["ps_partkey", "ps_suppkey"],
    )
    sums = shipped.groupby(["ps_partkey", "ps_suppkey"]).agg(
        {"ps_availqty": "max", "l_quantity": "sum"}, split_out=1
    )
    excess = sums[sums.ps_availqty > 0.5 * sums.l_quantity].reset_index()
    found = suppliers.merge(
        excess[["ps_suppkey"]].drop_duplicates(split_out=1),
        left_on="s_suppkey",
        right_on="ps_suppkey",
    )
    return ordered(found[["s_name", "s_address"]], "s_name")


def q21(t: Tables) -> dd.DataFrame:
    """Suppliers who kept orders waiting."""
    lines = t.lineitem.assign(
        late=(t.lineitem.l_receiptdate > t.lineitem.l_commitdate).astype("int64")
    )[["l_orderkey", "l_suppkey", "late"]]
    waiting = (
        lines[lines.late == 1]
        .merge(
            suppliers_in(t, "SAUDI ARABIA")[["s_suppkey", "s_name"]],
            left_on="l_suppkey",
            right_on="s_suppkey",
        )
        .merge(
            t.orders[t.orders.o_orderstatus == "F"][["o_orderkey"]],
            left_on="l_orderkey",
            right_on="o_orderkey",
            broadcast=False,
        )[["l_orderkey", "s_name"]]
    )
    # Only the orders that may count are looked into: who supplied them, and who was late.
    involved = lines.merge(
        waiting[["l_orderkey"]], how="leftsemi", on="l_orderkey", broadcast=False
    )
    suppliers = involved.groupby(["l_orderkey", "l_suppkey"]).late.max(split_out=True)
    orders = (
        suppliers.reset_index()
        .groupby("l_orderkey")
        .agg({"l_suppkey": "count", "late": "sum"}, split_out=True)
        .reset_index()
    )
    alone = orders[(orders.l_suppkey > 1) & (orders.late == 1)][["l_orderkey"]]
    found = waiting.merge(alone, on="l_orderkey", broadcast=False)
    counts = found.groupby("s_name").agg(numwait=("l_orderkey", "count"), split_out=1)
    return ordered(counts.reset_index(), ["numwait", "s_name"], [False, True], n=100)


def q22(t: Tables) -> dd.DataFrame:
    """Global sales opportunity."""
    customers = t.customer.assign(cntrycode=t.customer.c_phone.str.slice(0, 2))
    customers = customers[customers.cntrycode.isin(["13", "31", "23", "29", "30", "18", "17"])]
    usual = customers[customers.c_acctbal > 0.0].c_acctbal.mean()
    wealthy = customers[customers.c_acctbal > usual][["c_custkey", "cntrycode", "c_acctbal"]]
    found = wealthy.merge(
        t.orders[["o_custkey"]],
        how="left",
        left_on="c_custkey",
        right_on="o_custkey",
        indicator="ordered",
        broadcast=False,
    )
    found = found[found.ordered == "left_only"]
    codes = found.groupby("cntrycode").agg(
        numcust=("c_custkey", "count"), totacctbal=("c_acctbal", "sum"), split_out=1
    )
    return ordered(codes.reset_index(), "cntrycode")
