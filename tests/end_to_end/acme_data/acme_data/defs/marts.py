"""Assets downstream of exports: by pandas, and by SQL on DuckDB."""

import dagster as dg
import duckdb
import pandas as pd


@dg.asset(ins={"orders": dg.AssetIn(key=["shop", "orders"])})
def revenue(orders: pd.DataFrame) -> dg.MaterializeResult[None]:
    """Sum up all orders."""
    return dg.MaterializeResult(metadata={"cents": int(orders["cents"].sum())})


@dg.asset(ins={"orders": dg.AssetIn(key=["shop", "orders"]), "customers": dg.AssetIn(key=["crm", "customers"])})
def best_customers(orders: duckdb.DuckDBPyRelation, customers: duckdb.DuckDBPyRelation) -> dg.MaterializeResult[None]:
    """Find who ordered most."""
    bought, known = orders.arrow().read_all(), customers.arrow().read_all()
    sql = "SELECT name FROM bought JOIN known ON customer = known.id GROUP BY 1 ORDER BY sum(cents) DESC LIMIT 1"
    (best,) = duckdb.connect().register("bought", bought).register("known", known).execute(sql).fetchone()
    return dg.MaterializeResult(metadata={"best": best})
