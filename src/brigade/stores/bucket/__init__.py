"""The bucket store: the queue protocol over conditional object operations, written sans I/O."""
