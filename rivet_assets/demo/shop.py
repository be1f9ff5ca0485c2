"""The demo's shop as SQL: its tables, the rows it opens with, the rows that each later round adds.

Belongs here: statements for PostgreSQL, deterministic to the last byte. Not here: running them (`demo.py`), exporting
them (`defs/demo/defs.yaml`).
"""

from __future__ import annotations

CUSTOMERS, ORDERS, ORDER_ITEMS, EVENTS = 20_000, 80_000, 200_000, 60_000
NEW_EVENTS, LATE_ORDERS = 1_500, 250
RETURNED = 4_000  # one order of so many comes back in each round
LATE_DAY = "2026-01-17"  # each later round finds some more orders of this day

TABLES = """
CREATE TYPE order_status AS ENUM ('placed', 'paid', 'shipped', 'returned');
CREATE TABLE customers (
    id integer PRIMARY KEY, reference uuid NOT NULL, name text NOT NULL, email text, country char(2) NOT NULL,
    subscribed boolean NOT NULL, balance numeric(12,2) NOT NULL, born date, joined_at timestamptz NOT NULL,
    tags text[] NOT NULL, profile jsonb
);
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer_id integer NOT NULL, created_at timestamptz NOT NULL, status order_status NOT NULL,
    amount numeric(12,2) NOT NULL, currency char(3) NOT NULL, note text, placed_from inet, delivered_in interval
);
CREATE INDEX orders_created_at ON orders (created_at);
CREATE TABLE order_items (
    id bigint PRIMARY KEY, order_id bigint NOT NULL, product text NOT NULL, quantity smallint NOT NULL,
    unit_price numeric(10,4) NOT NULL, discount double precision, options jsonb
);
CREATE TABLE events (
    id bigint PRIMARY KEY, created_at timestamptz NOT NULL, session uuid NOT NULL, kind text NOT NULL,
    scores integer[], payload jsonb, signature bytea
);
CREATE INDEX events_created_at ON events (created_at);
CREATE TABLE demo_rounds (round integer PRIMARY KEY);
"""

CUSTOMER_ROWS = f"""
INSERT INTO customers
SELECT n,
       md5('customer ' || n)::uuid,
       (ARRAY['Žofie','Jürgen','Søren','Ἑλένη','Мария','さくら','李娜','Zoë','Ada','O''Brien'])[1 + n % 10] || ' ' || n,
       CASE n % 12 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE 'customer' || n || '@example.org' END,
       (ARRAY['CZ','DE','DK','GR','JP','CN','NL','GB'])[1 + n % 8],
       n % 3 > 0,
       (n * 7919::bigint % 2000000 - 1000000) / 100.0,
       CASE WHEN n % 9 > 0 THEN date '1950-01-01' + n * 13 % 20000 END,
       timestamptz '2020-01-01 00:00:00+00' + n * interval '2 hours 17 minutes 3.141593 seconds',
       CASE n % 4 WHEN 0 THEN '{{}}' WHEN 1 THEN ARRAY['vip', NULL] ELSE ARRAY['a, b', 'č "q" ' || n % 5] END,
       CASE WHEN n % 5 > 0 THEN jsonb_build_object('lang', 'cs', 'visits', n % 97, 'emoji', '🛒') END
FROM generate_series(1, {CUSTOMERS}) n;
"""

ORDER_ROWS = """
INSERT INTO orders
SELECT n,
       1 + n * 31 % 20000,
       {created_at},
       (ARRAY['placed','paid','shipped','returned'])[1 + n % 4]::order_status,
       (n * 6700417::bigint % 5000000) / 100.0,
       (ARRAY['CZK','EUR','JPY'])[1 + n % 3],
       CASE n % 7 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE E'gift — line\\nbreak ' || n END,
       CASE WHEN n % 6 > 0 THEN ('10.' || n % 200 || '.' || n % 250 || '.7')::inet END,
       CASE WHEN n % 4 = 2 THEN n % 9 * interval '1 day 02:03:04.5' END
FROM generate_series({first}, {last}) n;
"""

ITEM_ROWS = f"""
INSERT INTO order_items
SELECT n,
       1 + n * 2 / 5,
       (ARRAY['Tea','Káva','お茶','Mug','Teapot','Honey'])[1 + n % 6],
       1 + n % 5,
       (n * 104729::bigint % 1000000) / 10000.0,
       CASE n % 10 WHEN 0 THEN 0.1 WHEN 1 THEN 'NaN'::float8 WHEN 2 THEN 1/3.0 END,
       CASE WHEN n % 8 = 0 THEN jsonb_build_object('wrap', true, 'text', 'pro tebe ❤') END
FROM generate_series(1, {ORDER_ITEMS}) n;
"""

EVENT_ROWS = """
INSERT INTO events
SELECT n,
       date_trunc('second', timestamptz '2026-01-01 00:00:00+00' + (n + 2) / 3 * interval '30 seconds'),
       md5('session ' || n / 12)::uuid,
       (ARRAY['view','search','cart','checkout'])[1 + n % 4],
       CASE WHEN n % 5 > 0 THEN ARRAY[n % 100, NULL, -n % 7] END,
       jsonb_build_object('path', '/p/' || n % 500, 'ms', n % 1700),
       CASE WHEN n % 3 = 0 THEN decode(md5(n::text), 'hex') END
FROM generate_series({first}, {last}) n;
"""


def opening() -> list[str]:
    """Return the statements that make the shop with its first 360,000 rows."""
    january = "timestamptz '2026-01-01 00:00:00+00' + n * interval '33.3 seconds'"
    return [
        TABLES,
        CUSTOMER_ROWS,
        ORDER_ROWS.format(created_at=january, first=1, last=ORDERS),
        ITEM_ROWS,
        EVENT_ROWS.format(first=1, last=EVENTS),
        "INSERT INTO demo_rounds VALUES (1)",
    ]


def later(round_number: int) -> list[str]:
    """Return the statements of round 2, 3, …: new events, orders that come late to a day of January, returned ones."""
    first_event = EVENTS + (round_number - 2) * NEW_EVENTS + 1
    first_order = ORDERS + (round_number - 2) * LATE_ORDERS + 1
    late = f"timestamptz '{LATE_DAY} 12:00:00+00' + n % 3600 * interval '1 second'"
    return [
        ORDER_ROWS.format(created_at=late, first=first_order, last=first_order + LATE_ORDERS - 1),
        EVENT_ROWS.format(first=first_event, last=first_event + NEW_EVENTS - 1),
        f"UPDATE orders SET status = 'returned' WHERE id % {RETURNED} = {round_number}",
        f"INSERT INTO demo_rounds VALUES ({round_number})",
    ]
