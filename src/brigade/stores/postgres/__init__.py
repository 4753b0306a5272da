"""The PostgreSQL store: queues in tables, for teams whose jobs should live beside their data."""
