"""Vocabularies of made-up rows. Their members and order are part of the promise that equal seeds give equal rows.

Belongs here: constants, of the sizes that `connectors.md`, 5, gives. Not here: how one is drawn (rows.py).
E-mail domains are ones that RFC 2606 and RFC 6761 reserve, so that no made-up address can exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CATEGORIES = ("A", "B", "C", "D")
FIRST_NAMES = (
    "Alice", "Bob", "Carol", "David", "Emma", "Frank", "Grace", "Henry", "Ivy", "Jack", "Karen", "Liam", "Mia",
    "Noah", "Olivia", "Peter",
)  # fmt: skip
LAST_NAMES = (
    "Smith", "Johnson", "Brown", "Taylor", "Miller", "Davis", "Wilson", "Moore", "Anderson", "Thomas", "Jackson",
    "White", "Harris", "Martin",
)  # fmt: skip
DOMAINS = ("example.com", "example.org", "example.net", "mail.example", "shop.test")
COUNTRIES = ("US", "GB", "DE", "FR", "CZ", "ES", "IT", "JP", "BR", "AU")
PRODUCTS = (
    "Laptop", "Phone", "Tablet", "Monitor", "Keyboard", "Mouse", "Headphones", "Camera", "Printer", "Router",
)  # fmt: skip
CURRENCIES = ("USD", "EUR", "GBP", "CZK", "JPY")
STATUSES = ("pending", "confirmed", "processing", "shipped", "delivered", "cancelled")
EVENT_TYPES = (
    "page_view", "click", "purchase", "sign_up", "login", "logout", "search", "add_to_cart", "remove_from_cart",
    "share",
)  # fmt: skip
# The event types with a payload, by place in the list above.
PAGE_VIEW, CLICK, PURCHASE = range(3)
SOURCES = ("web", "ios", "android", "api", "email")
PATHS = ("/", "/products", "/cart", "/checkout", "/account", "/search", "/help", "/about")
REFERRERS = ("https://search.example/", "https://news.example/", "https://social.example/")
ELEMENTS = ("buy-button", "menu", "search-box", "banner", "logo", "footer-link")
HOSTS = ("web-01", "web-02", "api-01", "api-02", "db-01", "cache-01")
ENVIRONMENTS = ("production", "staging", "development")
REGIONS = ("us-east-1", "us-west-2", "eu-central-1", "ap-southeast-1")


@dataclass(frozen=True)
class Metric:
    """One metric: values are `low` plus 0 to `span` hundredths, both inclusive."""

    name: str
    unit: str
    low: int
    span: int


METRICS: Sequence[Metric] = (
    Metric("cpu_usage", "percent", 0, 100_00),
    Metric("memory_usage", "percent", 0, 100_00),
    Metric("disk_usage", "percent", 0, 100_00),
    Metric("request_latency", "milliseconds", 1_00, 500_00),
    Metric("request_rate", "req/s", 0, 10_000_00),
    Metric("network_in", "bytes/s", 0, 1_000_00),
    Metric("network_out", "bytes/s", 0, 1_000_00),
    Metric("error_count", "count", 0, 1_000_00),
    Metric("queue_depth", "count", 0, 1_000_00),
)
