"""How fast, and at how many storage requests a message. Run it with `python -m bench`."""
