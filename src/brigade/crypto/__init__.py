"""Encryption at rest: what users put into a store is sealed before it leaves this process.

`keys` holds keys and where they come from, `vault` seals and opens values, `streams` does the same for payloads
that don't fit in memory, `blobs` and `fields` are where the stores meet them. Nothing here is imported unless
encryption is on; it needs the `crypto` extra.
"""
