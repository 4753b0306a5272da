"""Real servers for tests and benchmarks: started on a free port, shared by those who need them, always stopped."""
