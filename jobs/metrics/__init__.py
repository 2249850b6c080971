"""The numbers: what workers reported, added up, and what pages, alerts and Prometheus read of it."""
