"""Real processes on a real store while a nemesis breaks things, and a judge of what they were told."""
