"""A module for each page: what it shows, what its buttons do, and which parts of it are live."""
