"""Who may use a server: bearer tokens with scopes, and TLS."""
