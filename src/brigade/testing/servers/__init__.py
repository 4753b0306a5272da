"""Real servers for tests and benchmarks: started on free ports, shared by the processes of a run, always stopped."""
