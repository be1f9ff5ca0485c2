"""The Spark session, its JVM, and what runs in its workers."""
