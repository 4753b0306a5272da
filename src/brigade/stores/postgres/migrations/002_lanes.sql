-- Strict queues and groups. A lane's row is its lock, and says when its head may be claimed.

CREATE TABLE {schema}.lanes (
    queue_id integer NOT NULL,
    lane text NOT NULL,
    priority smallint NOT NULL,
    due_at bigint NOT NULL,
    open_at bigint NOT NULL,
    waits boolean NOT NULL,
    PRIMARY KEY (queue_id, lane)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE INDEX lanes_open ON {schema}.lanes (queue_id, priority, due_at) WHERE NOT waits;
CREATE INDEX lanes_waiting ON {schema}.lanes (queue_id, open_at) WHERE waits;
CREATE INDEX messages_lanes ON {schema}.messages (queue_id, lane, id) WHERE lane IS NOT NULL;
CREATE INDEX messages_lanes_leased ON {schema}.messages (queue_id, lane)
    WHERE lane IS NOT NULL AND state = 'in_flight';
