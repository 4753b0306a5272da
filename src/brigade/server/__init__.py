"""The server: queues over HTTP, on any store. It needs the extra `server`."""
