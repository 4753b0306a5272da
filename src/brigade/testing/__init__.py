"""What Brigade is tested with, for others to use: `conformance` for stores, `sim` for the bucket protocol."""
