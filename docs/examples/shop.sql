-- Run once by the PostgreSQL of docker-compose.yaml: a database for Rivet's own tables, and a small shop to export.
CREATE DATABASE rivet;
CREATE DATABASE shop;
\connect shop

CREATE TABLE customers (
    id bigint PRIMARY KEY,
    name text NOT NULL,
    email text,
    country char(2) NOT NULL,
    created_at timestamptz NOT NULL
);
COMMENT ON TABLE customers IS 'Who bought something, or wanted to.';
COMMENT ON COLUMN customers.country IS 'ISO 3166-1 alpha-2.';
INSERT INTO customers
SELECT n, 'Customer ' || n, 'customer' || n || '@example.com', (ARRAY['CZ', 'DE', 'PT', 'US'])[1 + n % 4],
       timestamptz '2026-01-01 00:00+00' + n * interval '7 minutes'
FROM generate_series(1, 5000) AS n;

CREATE TABLE orders (
    id bigint PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES customers,
    amount numeric(12, 2) NOT NULL,
    placed_at timestamptz NOT NULL
);
CREATE INDEX ON orders (placed_at);
INSERT INTO orders
SELECT n, 1 + n % 5000, (n % 9973) / 7.0, now() - n * interval '1 minute'
FROM generate_series(1, 20000) AS n;

-- Who exports may read, and nothing else.
CREATE ROLE reader LOGIN PASSWORD 'reader';
GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader;
