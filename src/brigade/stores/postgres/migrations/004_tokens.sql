-- Who may use a server in front of this database. Only hashes of tokens are kept.

CREATE TABLE {schema}.tokens (
    id text PRIMARY KEY,
    value bytea NOT NULL
);
