"""The remote store: a `brigade serve` as a store like any other, and what the two say to each other."""
