"""Brigade on Spark: `format("brigade")`, and what else the pipeline is made of. Needs `bucket-brigade[spark]`."""
