-- Every statement of the PostgreSQL store. A query starts at its name; the lines below it say what it does.
-- {schema} stands for the store's schema, {first} and {last} for the queue's order: ASC and DESC, or the reverse.

-- name: clock
-- The server's time.
SELECT {schema}.now_ms();

-- name: find_queue
-- A queue by its name.
SELECT id, policy::text, sealed::text FROM {schema}.queues WHERE name = %(name)s;

-- name: list_queues
-- The names of all queues.
SELECT name FROM {schema}.queues ORDER BY name COLLATE "C";

-- name: make_queue
-- Create a queue unless it exists.
INSERT INTO {schema}.queues (name, policy, max_attempts, retention_ms, ttl_ms, dead_letter_queue, strict, lifo)
VALUES (%(name)s, %(policy)s::json, %(max_attempts)s, %(retention_ms)s, %(ttl_ms)s, %(dead_letter_queue)s,
        %(strict)s, %(lifo)s)
ON CONFLICT (name) DO NOTHING;

-- name: change_queue
-- Replace the policy of a queue.
UPDATE {schema}.queues
SET policy = %(policy)s::json, max_attempts = %(max_attempts)s, retention_ms = %(retention_ms)s, ttl_ms = %(ttl_ms)s,
    dead_letter_queue = %(dead_letter_queue)s, strict = %(strict)s, lifo = %(lifo)s
WHERE name = %(name)s
RETURNING id;

-- name: seal_queue
-- Remember which keys a queue is sealed with, unless somebody else did so meanwhile.
UPDATE {schema}.queues SET sealed = %(sealed)s::json
WHERE id = %(queue)s AND sealed::text IS NOT DISTINCT FROM %(before)s
RETURNING id;

-- name: change_ttl
-- Apply a changed ttl of the queue to the messages that nobody has claimed and that have no ttl of their own.
UPDATE {schema}.messages SET lapse_at = due_at + %(ttl_ms)s
WHERE queue_id = %(queue)s AND ttl_ms IS NULL AND NOT derived AND state = 'ready' AND attempts = 0;

-- name: set_paused
-- Pause or resume a queue.
UPDATE {schema}.queues SET paused = %(paused)s WHERE id = %(queue)s RETURNING id;

-- name: is_paused
-- Whether a queue is paused.
SELECT paused FROM {schema}.queues WHERE id = %(queue)s;

-- name: is_lifo
-- Whether a queue hands out its newest first.
SELECT lifo FROM {schema}.queues WHERE id = %(queue)s;

-- name: expect_messages
-- Say that somebody waits here, so that whoever enqueues notifies, for at least so long. Longer where it has to be
-- said anew: of many who wait, most find that it has been said.
UPDATE {schema}.queues SET waiting_until = {schema}.now_ms() + %(length)s * 3 / 2
WHERE id = %(queue)s AND waiting_until < {schema}.now_ms() + %(length)s;

-- name: notify
-- Wake those who wait at a queue.
SELECT pg_notify(%(channel)s, %(payload)s);

-- name: allocate
-- Ids for messages that are about to be written, the server's time, and what the queue makes of them.
SELECT q.ttl_ms, q.waiting_until > c.now, c.now,
       ARRAY(SELECT nextval('{schema}.message_ids') FROM generate_series(1, %(count)s))
FROM {schema}.queues q, (SELECT {schema}.now_ms() AS now) c
WHERE q.id = %(queue)s;

-- name: insert_messages
-- Write messages in the order given; an id of NULL takes the next one. Nothing is written where the queue is gone.
WITH clock AS MATERIALIZED (SELECT {schema}.now_ms() AS now)
INSERT INTO {schema}.messages (
    id, due_at, enqueued_at, batch, lapse_at, ttl_ms, size, blob, checksum, queue_id, max_attempts, priority, lane,
    group_name, own_id, correlation_id, content_type, attributes, payload)
SELECT coalesce(w.id, nextval('{schema}.message_ids')), c.now + w.delay, c.now, %(batch)s,
       c.now + w.delay + coalesce(w.ttl, q.ttl_ms), w.ttl, w.size, w.blob, w.checksum, q.id, w.max_attempts,
       w.priority, w.lane, w.group_name, w.own_id, w.correlation_id, w.content_type, w.attributes::json, w.payload
FROM unnest(
         %(ids)s::bigint[], %(delays)s::bigint[], %(ttls)s::bigint[], %(sizes)s::bigint[], %(blobs)s::bigint[],
         %(checksums)s::bigint[], %(limits)s::integer[], %(priorities)s::smallint[], %(lanes)s::text[],
         %(groups)s::text[], %(own_ids)s::text[], %(correlations)s::text[], %(types)s::text[],
         %(attributes)s::text[], %(payloads)s::bytea[])
     WITH ORDINALITY AS w (
         id, delay, ttl, size, blob, checksum, max_attempts, priority, lane, group_name, own_id, correlation_id,
         content_type, attributes, payload, place),
     {schema}.queues q, clock c
WHERE q.id = %(queue)s
ORDER BY w.place
RETURNING id, (SELECT waiting_until > enqueued_at FROM {schema}.queues WHERE queues.id = queue_id);

-- name: insert_one
-- Write one message that is in no lane and has no id of its user's. Nothing is written where the queue is gone.
INSERT INTO {schema}.messages (
    due_at, enqueued_at, batch, lapse_at, ttl_ms, size, queue_id, max_attempts, priority, correlation_id, content_type,
    attributes, payload)
SELECT c.now + %(delay)s, c.now, %(batch)s, c.now + %(delay)s + coalesce(%(ttl)s, q.ttl_ms), %(ttl)s,
       octet_length(%(payload)s::bytea), q.id, %(limit)s, %(priority)s, %(correlation)s, %(type)s,
       %(attributes)s::json, %(payload)s::bytea
FROM {schema}.queues q, (SELECT {schema}.now_ms() AS now) c
WHERE q.id = %(queue)s
RETURNING id, (SELECT waiting_until > enqueued_at FROM {schema}.queues WHERE queues.id = queue_id);

-- name: copy_messages
-- Write many messages, with ids and times from `allocate`.
COPY {schema}.messages (
    id, due_at, enqueued_at, batch, lapse_at, ttl_ms, size, queue_id, max_attempts, priority, group_name,
    correlation_id, content_type, attributes, payload)
FROM STDIN (FORMAT BINARY);

-- name: find_batch
-- The messages of an enqueue whose commit was in doubt, wherever they are by now.
SELECT id FROM {schema}.messages WHERE queue_id = %(queue)s AND batch = %(batch)s
UNION
SELECT id FROM {schema}.history
WHERE queue_id = %(queue)s AND batch = %(batch)s AND finished_at >= %(since)s
ORDER BY id;

-- name: take_ids
-- Take the user's own ids that are free; waits for a transaction that is about to take the same one.
INSERT INTO {schema}.own_ids (queue_id, own_id, message_id, taken_at, correlation_id)
SELECT %(queue)s, w.own_id, w.id, {schema}.now_ms(), w.correlation_id
FROM unnest(%(ids)s::bigint[], %(own_ids)s::text[], %(correlations)s::text[]) AS w (id, own_id, correlation_id)
ORDER BY w.own_id COLLATE "C"
ON CONFLICT (queue_id, own_id) DO NOTHING
RETURNING own_id;

-- name: find_ids
-- The messages that have these ids of the user's own.
SELECT own_id, message_id, correlation_id
FROM {schema}.own_ids
WHERE queue_id = %(queue)s AND own_id = ANY (%(own_ids)s::text[]);

-- name: make_blob
-- A place for a large payload.
INSERT INTO {schema}.blobs (made_at) VALUES ({schema}.now_ms()) RETURNING id;

-- name: write_chunk
-- One chunk of a large payload.
INSERT INTO {schema}.chunks (blob, place, data) VALUES (%(blob)s, %(place)s, %(data)s)
ON CONFLICT (blob, place) DO NOTHING;

-- name: find_blob
-- Where the payload of a message lies.
SELECT blob FROM {schema}.messages WHERE id = %(id)s;

-- name: read_chunk
-- One chunk of a large payload.
SELECT data FROM {schema}.chunks WHERE blob = %(blob)s AND place = %(place)s;

-- name: drop_blobs
-- Large payloads that no message needs any more.
DELETE FROM {schema}.blobs b
WHERE b.id = ANY (%(blobs)s)
  AND NOT EXISTS (SELECT FROM {schema}.messages m WHERE m.blob = b.id)
  AND NOT EXISTS (SELECT FROM {schema}.parked p WHERE p.blob = b.id);

-- name: claim_ready
-- Lease the first ready messages that nobody else is taking. `low` is, for each priority, a due time below which
-- none is expected: the index entries of messages that have ended are not walked through again and again. A row that
-- is locked stays where it is, so it is found again by its place and needs no second look into an index.
WITH clock AS MATERIALIZED (SELECT {schema}.now_ms() AS now),
picked AS MATERIALIZED (
    SELECT m.place
    FROM generate_series(0, 9) AS p (priority)
    CROSS JOIN LATERAL (
        SELECT r.ctid AS place
        FROM {schema}.messages r
        WHERE r.queue_id = %(queue)s AND r.state = 'ready' AND r.lane IS NULL AND r.priority = p.priority
          AND r.due_at <= (SELECT now FROM clock) AND r.due_at >= (%(low)s::bigint[])[p.priority + 1]
          AND (r.lapse_at IS NULL OR r.attempts > 0 OR r.lapse_at > (SELECT now FROM clock))
        ORDER BY r.due_at {first}, r.id {first}
        FOR UPDATE SKIP LOCKED
        LIMIT %(limit)s
    ) m
    WHERE NOT (SELECT paused FROM {schema}.queues WHERE id = %(queue)s)
    LIMIT %(limit)s
)
UPDATE {schema}.messages m
SET state = 'in_flight', token = %(token)s::uuid, owner = %(owner)s, claimed_at = c.now,
    expires_at = c.now + %(lease)s, attempts = m.attempts + 1, version = m.version + 1
FROM clock c
WHERE m.ctid = ANY (ARRAY(SELECT place FROM picked))
RETURNING {delivered};

-- name: claim_expired
-- Take over messages whose lease ran out and that have attempts left.
WITH clock AS MATERIALIZED (SELECT {schema}.now_ms() AS now),
picked AS MATERIALIZED (
    SELECT r.ctid AS place
    FROM {schema}.messages r, {schema}.queues q
    WHERE q.id = %(queue)s AND NOT q.paused
      AND r.queue_id = %(queue)s AND r.state = 'in_flight' AND r.lane IS NULL
      AND r.expires_at <= (SELECT now FROM clock) AND r.attempts < coalesce(r.max_attempts, q.max_attempts)
    ORDER BY r.expires_at
    LIMIT %(limit)s
    FOR UPDATE OF r SKIP LOCKED
)
UPDATE {schema}.messages m
SET token = %(token)s::uuid, owner = %(owner)s, claimed_at = c.now, expires_at = c.now + %(lease)s,
    attempts = m.attempts + 1, version = m.version + 1, log = {logged_expired}
FROM clock c
WHERE m.ctid = ANY (ARRAY(SELECT place FROM picked))
RETURNING {delivered};

-- name: claim_chosen
-- Lease messages that somebody has chosen, due or not, unless they are in a lane.
WITH clock AS MATERIALIZED (SELECT {schema}.now_ms() AS now)
UPDATE {schema}.messages m
SET state = 'in_flight', token = %(token)s::uuid, owner = %(owner)s, claimed_at = c.now,
    expires_at = c.now + %(lease)s, attempts = m.attempts + 1, version = m.version + 1
FROM clock c
WHERE m.id = ANY (%(ids)s) AND m.queue_id = %(queue)s AND m.state = 'ready' AND m.lane IS NULL
RETURNING {delivered};

-- name: reprioritize
-- Give waiting messages another priority.
UPDATE {schema}.messages m SET priority = %(priority)s
WHERE m.id = ANY (%(ids)s) AND m.queue_id = %(queue)s AND m.state = 'ready' AND m.lane IS NULL
RETURNING m.id;

-- name: claim_these
-- Lease the heads of lanes that are locked.
WITH clock AS MATERIALIZED (SELECT {schema}.now_ms() AS now)
UPDATE {schema}.messages m
SET state = 'in_flight', token = %(token)s::uuid, owner = %(owner)s, claimed_at = c.now,
    expires_at = c.now + %(lease)s, attempts = m.attempts + 1, version = m.version + 1,
    log = CASE m.state WHEN 'ready' THEN m.log ELSE {logged_expired} END
FROM clock c
WHERE m.id = ANY (%(ids)s) AND m.queue_id = %(queue)s
RETURNING {delivered};

-- name: share_out
-- Hand leases that one claim won on to the owners they were won for. A second try finds what the first one did.
UPDATE {schema}.messages m
SET token = s.token, owner = s.owner
FROM unnest(%(ids)s::bigint[], %(tokens)s::uuid[], %(owners)s::text[]) AS s (id, token, owner)
WHERE m.id = s.id AND m.queue_id = %(queue)s AND m.state = 'in_flight'
  AND (m.token = %(token)s::uuid OR m.token = s.token)
RETURNING m.id;

-- name: load
-- The messages of a grant, possibly won in another process.
SELECT {delivered}
FROM {schema}.messages m
WHERE m.id = ANY (%(ids)s) AND m.queue_id = %(queue)s AND m.token = %(token)s::uuid;

-- name: find_claimed
-- What a claim whose commit was in doubt did win.
SELECT {delivered}
FROM {schema}.messages m
WHERE m.queue_id = %(queue)s AND m.state = 'in_flight' AND m.token = %(token)s::uuid;

-- name: outlook
-- What there is to decide, and when the next thing may be claimed: paused, whether there are lanes, and the times of
-- the next lease to run out, the next message to lapse, the next to be due, and the next lane to open. A message that
-- came due after `since` counts as one that is yet to be.
SELECT c.now, q.paused,
       EXISTS (SELECT FROM {schema}.lanes l WHERE l.queue_id = %(queue)s),
       (SELECT min(m.expires_at) FROM {schema}.messages m
        WHERE m.queue_id = %(queue)s AND m.state = 'in_flight' AND m.lane IS NULL),
       (SELECT min(m.lapse_at) FROM {schema}.messages m
        WHERE m.queue_id = %(queue)s AND m.lapse_at IS NOT NULL AND m.state = 'ready' AND m.attempts = 0
          AND m.lane IS NULL),
       (SELECT min(d.due_at)
        FROM generate_series(0, 9) AS p (priority)
        CROSS JOIN LATERAL (
            SELECT m.due_at FROM {schema}.messages m
            WHERE m.queue_id = %(queue)s AND m.state = 'ready' AND m.lane IS NULL AND m.priority = p.priority
              AND m.due_at > least(c.now, %(since)s)
            ORDER BY m.due_at LIMIT 1
        ) d),
       (SELECT min(l.open_at) FROM {schema}.lanes l WHERE l.queue_id = %(queue)s AND l.waits)
FROM {schema}.queues q, (SELECT {schema}.now_ms() AS now) c
WHERE q.id = %(queue)s;

-- name: find_doomed
-- What has failed with nobody there to say so: leases that ran out for the last time, and messages that lapsed.
(SELECT m.id, 'lease expired' AS reason
 FROM {schema}.messages m, {schema}.queues q
 WHERE q.id = %(queue)s AND m.queue_id = %(queue)s AND m.state = 'in_flight' AND m.lane IS NULL
   AND m.expires_at <= (SELECT {schema}.now_ms()) AND m.attempts >= coalesce(m.max_attempts, q.max_attempts)
 ORDER BY m.expires_at
 LIMIT %(limit)s)
UNION ALL
(SELECT m.id, 'expired'
 FROM {schema}.messages m
 WHERE m.queue_id = %(queue)s AND m.lapse_at IS NOT NULL AND m.state = 'ready' AND m.attempts = 0 AND m.lane IS NULL
   AND m.lapse_at <= (SELECT {schema}.now_ms())
 ORDER BY m.lapse_at
 LIMIT %(limit)s);

-- name: shares
-- How many of the next messages are heads of lanes, and how many are in no lane.
SELECT count(*) FILTER (WHERE n.in_lane), count(*) FILTER (WHERE NOT n.in_lane)
FROM (
    SELECT * FROM (
        (SELECT true AS in_lane, l.priority, l.due_at FROM {schema}.lanes l
         WHERE l.queue_id = %(queue)s AND NOT l.waits
         ORDER BY l.priority, l.due_at {first} LIMIT %(limit)s)
        UNION ALL
        (SELECT true, l.priority, l.due_at FROM {schema}.lanes l
         WHERE l.queue_id = %(queue)s AND l.waits AND l.open_at <= (SELECT {schema}.now_ms())
         ORDER BY l.open_at LIMIT %(limit)s)
        UNION ALL
        (SELECT false, p.priority, m.due_at
         FROM generate_series(0, 9) AS p (priority)
         CROSS JOIN LATERAL (
             SELECT r.due_at FROM {schema}.messages r
             WHERE r.queue_id = %(queue)s AND r.state = 'ready' AND r.lane IS NULL AND r.priority = p.priority
               AND r.due_at <= (SELECT {schema}.now_ms())
             ORDER BY r.due_at {first} LIMIT %(limit)s
         ) m
         LIMIT %(limit)s)
    ) c
    ORDER BY c.priority, c.due_at {first}
    LIMIT %(limit)s
) n;

-- name: touch_lanes
-- Lock lanes, making those that aren't there. In one order, so that nobody waits in a circle.
INSERT INTO {schema}.lanes (queue_id, lane, priority, due_at, open_at, waits)
SELECT q.id, l.lane, 9, 0, 99999999999999, true
FROM unnest(%(lanes)s::text[]) AS l (lane), {schema}.queues q
WHERE q.id = %(queue)s
ORDER BY l.lane COLLATE "C"
ON CONFLICT (queue_id, lane) DO UPDATE SET lane = excluded.lane;

-- name: lock_lanes
-- Lock lanes that are there.
SELECT lane FROM {schema}.lanes
WHERE queue_id = %(queue)s AND lane = ANY (%(lanes)s::text[])
ORDER BY lane COLLATE "C"
FOR UPDATE;

-- name: lock_all_lanes
-- Lock every lane of a queue.
SELECT lane FROM {schema}.lanes WHERE queue_id = %(queue)s ORDER BY lane COLLATE "C" FOR UPDATE;

-- name: pick_lanes
-- Lock the first lanes whose head may be claimed and that nobody else is busy with; of a paused queue, for a sweep.
SELECT l.lane
FROM {schema}.lanes l, {schema}.queues q
WHERE q.id = %(queue)s AND (NOT q.paused OR %(paused)s) AND l.queue_id = %(queue)s AND l.lane IN (
    SELECT o.lane FROM (
        (SELECT a.lane, a.priority, a.due_at FROM {schema}.lanes a
         WHERE a.queue_id = %(queue)s AND NOT a.waits
         ORDER BY a.priority, a.due_at {first} LIMIT %(limit)s * 2)
        UNION ALL
        (SELECT b.lane, b.priority, b.due_at FROM {schema}.lanes b
         WHERE b.queue_id = %(queue)s AND b.waits AND b.open_at <= (SELECT {schema}.now_ms())
         ORDER BY b.open_at LIMIT %(limit)s * 2)
    ) o
    ORDER BY o.priority, o.due_at {first}
    LIMIT %(limit)s * 2
)
ORDER BY l.priority, l.due_at {first}
LIMIT %(limit)s
FOR UPDATE OF l SKIP LOCKED;

-- name: heads
-- The head of each lane and what may be done with it: claim it, recover it, fail it as lapsed or spent, or wait.
SELECT l.lane, h.id,
       CASE
           WHEN h.state = 'ready' AND h.attempts = 0 AND h.lapse_at <= c.now THEN 'expired'
           WHEN h.state = 'ready' AND h.due_at > c.now THEN 'wait'
           WHEN h.state = 'ready' THEN 'claim'
           WHEN h.attempts >= coalesce(h.max_attempts, q.max_attempts) THEN 'lease expired'
           ELSE 'recover'
       END
FROM unnest(%(lanes)s::text[]) AS l (lane)
CROSS JOIN (SELECT {schema}.now_ms() AS now) c
CROSS JOIN {schema}.queues q
CROSS JOIN LATERAL (
    SELECT * FROM {schema}.messages m
    WHERE m.queue_id = %(queue)s AND m.lane = l.lane
    ORDER BY m.id {first} LIMIT 1
) h
WHERE q.id = %(queue)s AND NOT EXISTS (
    SELECT FROM {schema}.messages b
    WHERE b.queue_id = %(queue)s AND b.lane = l.lane AND b.state = 'in_flight' AND b.expires_at > c.now
);

-- name: seat_lanes
-- Bring the rows of locked lanes up to date with their messages; a lane without messages goes.
WITH clock AS MATERIALIZED (SELECT {schema}.now_ms() AS now),
seats AS MATERIALIZED (
    SELECT l.lane, h.priority, h.due_at,
           greatest(CASE h.state WHEN 'ready' THEN h.due_at ELSE h.expires_at END,
                    (SELECT max(b.expires_at) FROM {schema}.messages b
                     WHERE b.queue_id = %(queue)s AND b.lane = l.lane AND b.state = 'in_flight')) AS open_at
    FROM unnest(%(lanes)s::text[]) AS l (lane)
    LEFT JOIN LATERAL (
        SELECT m.priority, m.due_at, m.state, m.expires_at FROM {schema}.messages m
        WHERE m.queue_id = %(queue)s AND m.lane = l.lane
        ORDER BY m.id {first} LIMIT 1
    ) h ON true
),
emptied AS (
    DELETE FROM {schema}.lanes l USING seats s
    WHERE l.queue_id = %(queue)s AND l.lane = s.lane AND s.priority IS NULL
),
seated AS (
    UPDATE {schema}.lanes l
    SET priority = s.priority, due_at = s.due_at, open_at = s.open_at, waits = s.open_at > c.now
    FROM seats s, clock c
    WHERE l.queue_id = %(queue)s AND l.lane = s.lane AND s.priority IS NOT NULL
    RETURNING l.waits
)
SELECT (SELECT count(*) FROM seated WHERE NOT waits) > 0 AND waiting_until > c.now
FROM {schema}.queues, clock c WHERE id = %(queue)s;

-- name: ack
-- End messages as processed: out of the live ones, into history, in one statement.
WITH clock AS MATERIALIZED (SELECT {schema}.now_ms() AS now),
gone AS (
    DELETE FROM {schema}.messages m
    USING unnest(%(ids)s::bigint[], %(tokens)s::uuid[]) AS w (id, token)
    WHERE m.id = w.id AND m.token = w.token AND m.queue_id = %(queue)s
    RETURNING m.id, m.enqueued_at, m.due_at, m.batch, m.claimed_at, m.size, m.attempts, m.max_attempts, m.version, m.priority,
              m.owner, m.group_name, m.own_id, m.correlation_id, m.content_type, m.attributes, m.failure, m.log, m.blob,
              m.lane
),
kept AS (
    INSERT INTO {schema}.history (
        id, finished_at, enqueued_at, due_at, batch, claimed_at, size, queue_id, attempts, max_attempts, version,
        priority, outcome, owner, group_name, own_id, correlation_id, content_type, attributes, failure,
        log)
    SELECT g.id, (SELECT now FROM clock), g.enqueued_at, g.due_at, g.batch, g.claimed_at, g.size, %(queue)s, g.attempts,
           coalesce(g.max_attempts, (SELECT max_attempts FROM {schema}.queues WHERE id = %(queue)s), 1), g.version,
           g.priority, 'processed', g.owner, g.group_name, g.own_id, g.correlation_id, g.content_type, g.attributes,
           g.failure, g.log
    FROM gone g
),
counted AS (
    INSERT INTO {schema}.counts AS n (queue_id, day, slot, succeeded)
    SELECT %(queue)s, (SELECT now FROM clock) / 86400000, {slot}, count(*) FROM gone HAVING count(*) > 0
    ON CONFLICT (queue_id, day, slot) DO UPDATE SET succeeded = n.succeeded + excluded.succeeded
)
SELECT id, blob, lane FROM gone;

-- name: ack_with_results
-- The same, with what the handlers gave back.
WITH clock AS MATERIALIZED (SELECT {schema}.now_ms() AS now),
gone AS (
    DELETE FROM {schema}.messages m
    USING unnest(%(ids)s::bigint[], %(tokens)s::uuid[], %(results)s::text[]) AS w (id, token, result)
    WHERE m.id = w.id AND m.token = w.token AND m.queue_id = %(queue)s
    RETURNING m.id, m.enqueued_at, m.due_at, m.batch, m.claimed_at, m.size, m.attempts, m.max_attempts, m.version, m.priority,
              m.owner, m.group_name, m.own_id, m.correlation_id, m.content_type, m.attributes, m.failure, m.log, m.blob,
              m.lane, w.result
),
kept AS (
    INSERT INTO {schema}.history (
        id, finished_at, enqueued_at, due_at, batch, claimed_at, size, queue_id, attempts, max_attempts, version,
        priority, outcome, owner, group_name, own_id, correlation_id, content_type, attributes, failure,
        log, result)
    SELECT g.id, (SELECT now FROM clock), g.enqueued_at, g.due_at, g.batch, g.claimed_at, g.size, %(queue)s, g.attempts,
           coalesce(g.max_attempts, (SELECT max_attempts FROM {schema}.queues WHERE id = %(queue)s), 1), g.version,
           g.priority, 'processed', g.owner, g.group_name, g.own_id, g.correlation_id, g.content_type, g.attributes,
           g.failure, g.log, g.result::json
    FROM gone g
),
counted AS (
    INSERT INTO {schema}.counts AS n (queue_id, day, slot, succeeded)
    SELECT %(queue)s, (SELECT now FROM clock) / 86400000, {slot}, count(*) FROM gone HAVING count(*) > 0
    ON CONFLICT (queue_id, day, slot) DO UPDATE SET succeeded = n.succeeded + excluded.succeeded
)
SELECT id, blob, lane FROM gone;

-- name: give_back
-- Make leased messages ready again: after a failure that leaves attempts, or as if they had not been claimed.
WITH clock AS MATERIALIZED (SELECT {schema}.now_ms() AS now)
UPDATE {schema}.messages m
SET state = 'ready', token = NULL, owner = NULL, claimed_at = NULL, expires_at = NULL,
    attempts = m.attempts - (NOT w.counts)::integer,
    due_at = CASE WHEN w.delay > 0 THEN c.now + w.delay ELSE m.due_at END,
    log = {logged_back}
FROM unnest(%(ids)s::bigint[], %(tokens)s::uuid[], %(delays)s::bigint[], %(counts)s::boolean[], %(errors)s::text[])
         AS w (id, token, delay, counts, error),
     {schema}.queues q, clock c
WHERE m.id = w.id AND m.token = w.token AND m.queue_id = %(queue)s AND q.id = %(queue)s
  AND (NOT w.counts OR m.attempts < coalesce(m.max_attempts, q.max_attempts))
RETURNING m.id, greatest(m.due_at, c.now), q.waiting_until > c.now, m.lane;

-- name: extend
-- Move the expiry of leases.
WITH clock AS MATERIALIZED (SELECT {schema}.now_ms() AS now)
UPDATE {schema}.messages m
SET expires_at = c.now + w.length
FROM unnest(%(ids)s::bigint[], %(tokens)s::uuid[], %(lengths)s::bigint[]) AS w (id, token, length), clock c
WHERE m.id = w.id AND m.token = w.token AND m.queue_id = %(queue)s
RETURNING m.id, m.expires_at;

-- name: make_letters
-- The dead-letter queue of a queue, made with the default policy where nobody has made it yet.
INSERT INTO {schema}.queues (name, policy, max_attempts, retention_ms, ttl_ms, dead_letter_queue, strict, lifo)
SELECT q.dead_letter_queue, %(policy)s::json, %(max_attempts)s, %(retention_ms)s, %(ttl_ms)s, NULL, %(strict)s, %(lifo)s
FROM {schema}.queues q
WHERE q.id = %(queue)s AND q.dead_letter_queue IS NOT NULL
  AND NOT EXISTS (SELECT FROM {schema}.queues d WHERE d.name = q.dead_letter_queue)
ON CONFLICT (name) DO NOTHING;

-- name: fail
-- End messages as failed: into history, and to the dead-letter queue or the parked ones, workflow state included.
-- A token of NULL is for messages that were found doomed. They are looked at once more: what somebody has settled
-- or taken over meanwhile is left alone.
WITH clock AS MATERIALIZED (SELECT {schema}.now_ms() AS now),
gone AS (
    DELETE FROM {schema}.messages m
    USING unnest(%(ids)s::bigint[], %(tokens)s::uuid[], %(reasons)s::text[], %(errors)s::text[])
              AS w (id, token, reason, error),
          {schema}.queues q, clock c
    WHERE m.id = w.id AND m.queue_id = %(queue)s AND q.id = %(queue)s
      AND CASE
              WHEN w.token IS NOT NULL THEN m.token = w.token
              WHEN m.state = 'ready' THEN m.attempts = 0 AND m.lapse_at <= c.now
              ELSE m.expires_at <= c.now AND m.attempts >= coalesce(m.max_attempts, q.max_attempts)
          END
    RETURNING m.*, w.reason, w.error, q.name AS queue, q.max_attempts AS default_attempts, q.dead_letter_queue
),
ended AS MATERIALIZED (
    SELECT g.*, c.now, coalesce(g.own_id, g.queue_id || '-' || g.id) AS told_id,
           d.id AS letters, CASE WHEN d.id IS NOT NULL THEN nextval('{schema}.message_ids') END AS letter
    FROM gone g CROSS JOIN clock c LEFT JOIN {schema}.queues d ON d.name = g.dead_letter_queue
),
told AS MATERIALIZED (
    SELECT e.*, json_build_object(
        'queue', e.queue, 'id', e.told_id, 'reason', e.reason, 'error', e.error, 'attempts', e.attempts,
        'failed_at_ms', e.now, 'enqueued_at_ms', e.enqueued_at, 'priority', e.priority, 'ttl_ms', e.ttl_ms,
        'max_attempts', e.max_attempts, 'own_id', e.own_id) AS story
    FROM ended e
),
kept AS (
    INSERT INTO {schema}.history (
        id, finished_at, enqueued_at, due_at, batch, claimed_at, size, queue_id, attempts, max_attempts, version,
        priority, outcome, owner, reason, error, dead_letter_queue, group_name, own_id, correlation_id, content_type,
        attributes, failure, log)
    SELECT id, now, enqueued_at, due_at, batch, claimed_at, size, queue_id, attempts,
           coalesce(max_attempts, default_attempts), version, priority,
           CASE WHEN letters IS NULL THEN 'failed' ELSE 'dead-lettered' END, owner, reason, error,
           CASE WHEN letters IS NOT NULL THEN dead_letter_queue END, group_name, own_id, correlation_id, content_type,
           attributes, failure, log
    FROM told
),
parked AS (
    INSERT INTO {schema}.parked (
        id, failed_at, ttl_ms, size, blob, checksum, queue_id, max_attempts, priority, group_name, own_id,
        correlation_id, content_type, attributes, failure, payload)
    SELECT id, now, ttl_ms, size, blob, checksum, queue_id, max_attempts, priority, group_name, own_id,
           correlation_id, content_type, attributes, story, payload
    FROM told WHERE letters IS NULL
),
lettered AS (
    INSERT INTO {schema}.messages (
        id, due_at, enqueued_at, batch, size, blob, checksum, queue_id, priority, derived, group_name,
        correlation_id, content_type, attributes, failure, payload)
    SELECT letter, now, now, 0, size, blob, checksum, letters, priority, true, group_name,
           coalesce(correlation_id, told_id), content_type, attributes, story, payload
    FROM told WHERE letters IS NOT NULL
),
stated AS (
    INSERT INTO {schema}.states (message_id, queue_id, etag, saved_at, value)
    SELECT t.letter, t.letters, s.etag, t.now, s.value
    FROM told t JOIN {schema}.states s ON s.message_id = t.id WHERE t.letters IS NOT NULL
),
counted AS (
    INSERT INTO {schema}.counts AS n (queue_id, day, slot, dead_lettered)
    SELECT %(queue)s, t.now / 86400000, {slot}, count(*) FROM told t WHERE t.letters IS NOT NULL GROUP BY t.now
    ON CONFLICT (queue_id, day, slot) DO UPDATE SET dead_lettered = n.dead_lettered + excluded.dead_lettered
)
SELECT t.id, t.own_id, t.correlation_id, t.attempts, t.reason, t.error, t.letters,
       (SELECT waiting_until > t.now FROM {schema}.queues WHERE queues.id = t.letters), t.lane
FROM told t;

-- name: find_ended
-- How the leases of these messages ended, for settlements whose commit was in doubt.
SELECT h.id, h.version, h.outcome, h.attempts, h.log::text FROM {schema}.history h
WHERE h.id = ANY (%(ids)s) AND h.queue_id = %(queue)s
UNION ALL
SELECT m.id, 0, NULL, m.attempts, m.log::text FROM {schema}.messages m
WHERE m.id = ANY (%(ids)s) AND m.queue_id = %(queue)s;

-- name: count_live
-- How many live messages are in which state, parked failures, what history holds, and the oldest that waits.
SELECT c.now, q.paused,
       n.ready, n.delayed, n.in_flight, n.oldest,
       (SELECT count(*) FROM {schema}.parked p WHERE p.queue_id = %(queue)s),
       h.succeeded, h.dead_lettered
FROM {schema}.queues q
CROSS JOIN (SELECT {schema}.now_ms() AS now) c
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE state = 'ready' AND due_at <= c.now) AS ready,
           count(*) FILTER (WHERE state = 'ready' AND due_at > c.now) AS delayed,
           count(*) FILTER (WHERE state = 'in_flight') AS in_flight,
           min(due_at) FILTER (WHERE state = 'ready') AS oldest
    FROM (
        SELECT state, due_at FROM {schema}.messages WHERE queue_id = %(queue)s AND state = 'ready' AND lane IS NULL
        UNION ALL
        SELECT state, due_at FROM {schema}.messages
        WHERE queue_id = %(queue)s AND state = 'in_flight' AND lane IS NULL
        UNION ALL
        SELECT state, due_at FROM {schema}.messages WHERE queue_id = %(queue)s AND lane IS NOT NULL
    ) live
) n
CROSS JOIN LATERAL (
    SELECT coalesce(sum(succeeded), 0)::bigint AS succeeded, coalesce(sum(dead_lettered), 0)::bigint AS dead_lettered
    FROM {schema}.counts WHERE queue_id = %(queue)s
) h
WHERE q.id = %(queue)s;

-- name: peek
-- What a claim would get now.
SELECT {seen}
FROM (
    SELECT * FROM (
        (SELECT m.*
         FROM generate_series(0, 9) AS p (priority)
         CROSS JOIN LATERAL (
             SELECT * FROM {schema}.messages r
             WHERE r.queue_id = %(queue)s AND r.state = 'ready' AND r.lane IS NULL AND r.priority = p.priority
               AND r.due_at <= (SELECT {schema}.now_ms())
             ORDER BY r.due_at {first}, r.id {first} LIMIT %(limit)s
         ) m
         LIMIT %(limit)s)
        UNION ALL
        (SELECT * FROM {schema}.messages r
         WHERE r.queue_id = %(queue)s AND r.state = 'in_flight' AND r.lane IS NULL
           AND r.expires_at <= (SELECT {schema}.now_ms())
         ORDER BY r.expires_at LIMIT %(limit)s)
        UNION ALL
        (SELECT h.*
         FROM {schema}.lanes l
         CROSS JOIN LATERAL (
             SELECT * FROM {schema}.messages r
             WHERE r.queue_id = %(queue)s AND r.lane = l.lane ORDER BY r.id {first} LIMIT 1
         ) h
         WHERE l.queue_id = %(queue)s AND l.open_at <= (SELECT {schema}.now_ms())
         ORDER BY l.priority, l.due_at {first} LIMIT %(limit)s)
    ) c
    ORDER BY c.priority, c.due_at {first}, c.id {first}
    LIMIT %(limit)s
) m, {schema}.queues q
WHERE q.id = %(queue)s
ORDER BY m.priority, m.due_at {first}, m.id {first};

-- name: get_live
-- A live message.
SELECT {seen} FROM {schema}.messages m, {schema}.queues q
WHERE m.id = %(id)s AND m.queue_id = %(queue)s AND q.id = %(queue)s;

-- name: get_ended
-- A message in history.
SELECT h.id, h.priority, h.attempts, h.max_attempts, h.enqueued_at, h.due_at, h.correlation_id, h.own_id,
       h.attributes::text, h.group_name, h.content_type, h.size, h.outcome, h.finished_at, h.error, h.reason,
       h.result::text, h.failure::text, h.batch = 0
FROM {schema}.history h
WHERE h.id = %(id)s AND h.queue_id = %(queue)s
ORDER BY h.finished_at DESC LIMIT 1;

-- name: history_span
-- Where a queue's history since a time lies: the first and the last id, how many, and when the last one ended.
SELECT min(h.id), max(h.id), count(*), max(h.finished_at) FROM {schema}.history h
WHERE h.queue_id = %(queue)s AND h.finished_at >= %(since)s;

-- name: read_history
-- A part of a queue's history: by id, and no older than that.
SELECT h.id, h.finished_at, h.enqueued_at, h.due_at, h.claimed_at, h.size, h.attempts, h.max_attempts, h.version,
       h.priority, h.outcome, h.owner, h.reason, h.error, h.dead_letter_queue, h.group_name, h.own_id, h.correlation_id,
       h.content_type, h.attributes::text, h.failure::text, h.log::text, h.result::text,
       CASE WHEN q.strict OR h.group_name IS NOT NULL THEN coalesce(h.group_name, '') END
FROM {schema}.history h JOIN {schema}.queues q ON q.id = h.queue_id
WHERE h.id BETWEEN %(low)s AND %(high)s AND h.queue_id = %(queue)s AND h.finished_at >= %(since)s;

-- name: list_parked
-- Parked failures, oldest first.
SELECT id, payload, content_type, size, priority, correlation_id, own_id, attributes::text, group_name, failure::text
FROM {schema}.parked
WHERE queue_id = %(queue)s
ORDER BY failed_at, id
LIMIT %(limit)s;

-- name: browse_ready
-- Messages that wait in no lane, in the order of the queue, after one of them.
SELECT {seen}
FROM {schema}.queues q CROSS JOIN LATERAL (
    SELECT * FROM {schema}.messages r
    WHERE r.queue_id = %(queue)s AND r.state = 'ready' AND r.lane IS NULL
      AND (r.priority, r.due_at, r.id) > (%(priority)s::smallint, %(at)s::bigint, %(id)s::bigint)
    ORDER BY r.priority, r.due_at, r.id LIMIT %(limit)s
) m
WHERE q.id = %(queue)s;

-- name: browse_leased
-- Messages in flight that are in no lane, the lease that runs out next first, after one of them.
SELECT {seen}
FROM {schema}.queues q CROSS JOIN LATERAL (
    SELECT * FROM {schema}.messages r
    WHERE r.queue_id = %(queue)s AND r.state = 'in_flight' AND r.lane IS NULL
      AND r.expires_at >= %(at)s::bigint AND (r.expires_at, r.id) > (%(at)s::bigint, %(id)s::bigint)
    ORDER BY r.expires_at, r.id LIMIT %(limit)s
) m
WHERE q.id = %(queue)s;

-- name: browse_lanes
-- Messages of lanes, lane by lane, after one of them.
SELECT {seen}
FROM {schema}.queues q CROSS JOIN LATERAL (
    SELECT * FROM {schema}.messages r
    WHERE r.queue_id = %(queue)s AND r.lane IS NOT NULL
      AND (r.lane, r.id) > (%(lane)s::text, %(id)s::bigint)
    ORDER BY r.lane, r.id LIMIT %(limit)s
) m
WHERE q.id = %(queue)s;

-- name: log_live
-- The leases of a live message.
SELECT m.log::text, m.version, m.owner, m.claimed_at FROM {schema}.messages m
WHERE m.id = %(id)s AND m.queue_id = %(queue)s;

-- name: log_ended
-- The leases of a message in history.
SELECT h.log::text, h.version, h.owner, h.claimed_at, h.finished_at, h.outcome, h.reason, h.error
FROM {schema}.history h
WHERE h.id = %(id)s AND h.queue_id = %(queue)s
ORDER BY h.finished_at DESC LIMIT 1;

-- name: list_leases
-- Who holds what.
SELECT id, owner, version, claimed_at, expires_at, attempts FROM {schema}.messages
WHERE queue_id = %(queue)s AND state = 'in_flight' AND lane IS NULL
UNION ALL
SELECT id, owner, version, claimed_at, expires_at, attempts FROM {schema}.messages
WHERE queue_id = %(queue)s AND state = 'in_flight' AND lane IS NOT NULL
LIMIT %(limit)s;

-- name: list_groups
-- Lanes that have messages, the longest first.
SELECT min(group_name), count(*) FILTER (WHERE state = 'ready'), max(owner) FROM {schema}.messages
WHERE queue_id = %(queue)s AND lane IS NOT NULL
GROUP BY lane ORDER BY 2 DESC, 1 LIMIT %(limit)s;

-- name: lanes_of_messages
-- The lanes that messages are in.
SELECT DISTINCT lane FROM {schema}.messages
WHERE queue_id = %(queue)s AND id = ANY (%(ids)s::bigint[]) AND lane IS NOT NULL;

-- name: discard_messages
-- Drop messages that wait.
WITH gone AS (
    DELETE FROM {schema}.messages WHERE queue_id = %(queue)s AND id = ANY (%(ids)s::bigint[]) AND state = 'ready'
    RETURNING id, own_id, blob
),
freed AS (
    DELETE FROM {schema}.own_ids i USING gone g
    WHERE g.own_id IS NOT NULL AND i.queue_id = %(queue)s AND i.own_id = g.own_id AND i.message_id = g.id
)
SELECT count(*), array_agg(blob) FILTER (WHERE blob IS NOT NULL) FROM gone;

-- name: discard_parked
-- Drop parked failures.
WITH gone AS (
    DELETE FROM {schema}.parked WHERE queue_id = %(queue)s AND id = ANY (%(ids)s::bigint[]) RETURNING blob
)
SELECT count(*), array_agg(blob) FILTER (WHERE blob IS NOT NULL) FROM gone;

-- name: hasten_messages
-- Make messages due that wait for a later time.
WITH clock AS MATERIALIZED (SELECT {schema}.now_ms() AS now),
sooner AS (
    UPDATE {schema}.messages m SET due_at = c.now FROM clock c
    WHERE m.queue_id = %(queue)s AND m.id = ANY (%(ids)s::bigint[]) AND m.state = 'ready' AND m.due_at > c.now
    RETURNING 1
)
SELECT count(*), NULL::bigint[] FROM sooner;

-- name: take_back_messages
-- End leases as a release does, whoever holds them.
WITH clock AS MATERIALIZED (SELECT {schema}.now_ms() AS now),
w AS MATERIALIZED (SELECT %(error)s::text AS error, false AS counts),
back AS (
    UPDATE {schema}.messages m
    SET state = 'ready', token = NULL, owner = NULL, claimed_at = NULL, expires_at = NULL, attempts = m.attempts - 1,
        log = {logged_back}
    FROM clock c, w
    WHERE m.queue_id = %(queue)s AND m.id = ANY (%(ids)s::bigint[]) AND m.state = 'in_flight'
    RETURNING 1
)
SELECT count(*), NULL::bigint[] FROM back;

-- name: tail_history
-- What ended after a message that ended, oldest first.
SELECT h.id, h.own_id, h.outcome, h.enqueued_at, h.due_at, h.finished_at, h.log::text, h.version, h.owner, h.claimed_at,
       h.reason, h.error
FROM {schema}.history h
WHERE h.queue_id = %(queue)s AND h.finished_at >= %(at)s AND (h.finished_at, h.id) > (%(at)s::bigint, %(id)s::bigint)
ORDER BY h.finished_at, h.id
LIMIT %(limit)s;

-- name: count_day
-- How messages ended on one day.
SELECT count(*) FILTER (WHERE outcome = 'processed'), count(*) FILTER (WHERE outcome = 'failed'),
       count(*) FILTER (WHERE outcome = 'dead-lettered')
FROM {schema}.history
WHERE queue_id = %(queue)s AND finished_at >= %(day)s::bigint * 86400000
  AND finished_at < (%(day)s::bigint + 1) * 86400000;

-- name: newest_of_day
-- The messages that ended last on one day.
SELECT h.id, h.own_id, h.outcome, h.enqueued_at, h.due_at, h.finished_at, h.log::text, h.version, h.owner, h.claimed_at,
       h.reason, h.error
FROM {schema}.history h
WHERE h.queue_id = %(queue)s AND h.finished_at >= %(day)s::bigint * 86400000
  AND h.finished_at < (%(day)s::bigint + 1) * 86400000
ORDER BY h.finished_at DESC
LIMIT %(limit)s;

-- name: lanes_of_parked
-- The lanes that a redrive of parked failures will need.
SELECT DISTINCT coalesce(p.group_name, '')
FROM {schema}.parked p, {schema}.queues q
WHERE p.queue_id = %(queue)s AND q.id = %(queue)s AND (q.strict OR p.group_name IS NOT NULL)
  AND (%(ids)s::bigint[] IS NULL OR p.id = ANY (%(ids)s::bigint[]) OR p.own_id = ANY (%(own_ids)s::text[]));

-- name: redrive_parked
-- Parked failures as new messages, with fresh attempts and their own limits.
WITH clock AS MATERIALIZED (SELECT {schema}.now_ms() AS now),
chosen AS MATERIALIZED (
    SELECT p.id FROM {schema}.parked p
    WHERE p.queue_id = %(queue)s
      AND (%(ids)s::bigint[] IS NULL OR p.id = ANY (%(ids)s::bigint[]) OR p.own_id = ANY (%(own_ids)s::text[]))
    ORDER BY p.failed_at, p.id
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
gone AS (DELETE FROM {schema}.parked p USING chosen WHERE p.id = chosen.id RETURNING p.*),
again AS MATERIALIZED (
    SELECT g.*, nextval('{schema}.message_ids') AS new_id
    FROM (SELECT * FROM gone ORDER BY failed_at, id) g
),
written AS (
    INSERT INTO {schema}.messages (
        id, due_at, enqueued_at, batch, lapse_at, ttl_ms, size, blob, checksum, queue_id, max_attempts, priority,
        derived, lane, group_name, own_id, correlation_id, content_type, attributes, payload)
    SELECT a.new_id, c.now, c.now, 0, c.now + a.ttl_ms, a.ttl_ms, a.size, a.blob, a.checksum, a.queue_id,
           a.max_attempts, a.priority, true,
           CASE WHEN q.strict OR a.group_name IS NOT NULL THEN coalesce(a.group_name, '') END,
           a.group_name, a.own_id, coalesce(a.correlation_id, a.failure ->> 'id'), a.content_type, a.attributes,
           a.payload
    FROM again a, {schema}.queues q, clock c
    WHERE q.id = %(queue)s
),
stated AS (
    INSERT INTO {schema}.states (message_id, queue_id, etag, saved_at, value)
    SELECT a.new_id, a.queue_id, s.etag, c.now, s.value
    FROM again a JOIN {schema}.states s ON s.message_id = a.id CROSS JOIN clock c
),
named AS (
    INSERT INTO {schema}.own_ids AS i (queue_id, own_id, message_id, taken_at, correlation_id)
    SELECT DISTINCT ON (a.own_id) a.queue_id, a.own_id, a.new_id, c.now, coalesce(a.correlation_id, a.own_id)
    FROM again a, clock c WHERE a.own_id IS NOT NULL
    ON CONFLICT (queue_id, own_id) DO UPDATE SET message_id = excluded.message_id
)
SELECT count(*) FROM again;

-- name: lanes_of_letters
-- The lanes that a redrive of dead letters will need in the queue they failed in.
SELECT DISTINCT o.id, coalesce(m.group_name, '')
FROM {schema}.messages m JOIN {schema}.queues o ON o.name = m.failure ->> 'queue'
WHERE m.queue_id = %(queue)s AND m.state = 'ready' AND m.lane IS NULL AND m.failure IS NOT NULL
  AND (%(origin)s::text IS NULL OR o.name = %(origin)s) AND (o.strict OR m.group_name IS NOT NULL)
ORDER BY 1, 2;

-- name: redrive_letters
-- Dead letters that nobody holds go back to the queue they failed in. Here they end as processed.
WITH clock AS MATERIALIZED (SELECT {schema}.now_ms() AS now),
chosen AS MATERIALIZED (
    SELECT m.id, o.id AS origin_id, o.strict
    FROM {schema}.messages m
    JOIN {schema}.queues o ON o.name = m.failure ->> 'queue'
    JOIN {schema}.queues d ON d.id = %(queue)s AND NOT d.paused
    WHERE m.queue_id = %(queue)s AND m.lane IS NULL AND m.failure IS NOT NULL
      AND m.state = 'ready' AND m.due_at <= (SELECT now FROM clock)
      AND (%(origin)s::text IS NULL OR o.name = %(origin)s)
      AND (%(told)s::text[] IS NULL OR m.failure ->> 'id' = ANY (%(told)s::text[]) OR m.id = ANY (%(ids)s::bigint[]))
    ORDER BY m.priority, m.due_at, m.id
    LIMIT %(limit)s
    FOR UPDATE OF m SKIP LOCKED
),
gone AS (
    DELETE FROM {schema}.messages m USING chosen c WHERE m.id = c.id RETURNING m.*, c.origin_id, c.strict
),
again AS MATERIALIZED (
    SELECT g.*, nextval('{schema}.message_ids') AS new_id, (g.failure ->> 'ttl_ms')::bigint AS own_ttl,
           (g.failure ->> 'max_attempts')::integer AS own_limit
    FROM (SELECT * FROM gone ORDER BY priority, due_at, id) g
),
written AS (
    INSERT INTO {schema}.messages (
        id, due_at, enqueued_at, batch, lapse_at, ttl_ms, size, blob, checksum, queue_id, max_attempts, priority,
        derived, lane, group_name, own_id, correlation_id, content_type, attributes, payload)
    SELECT a.new_id, c.now, c.now, 0, c.now + a.own_ttl, a.own_ttl, a.size, a.blob, a.checksum, a.origin_id,
           a.own_limit, a.priority, true,
           CASE WHEN a.strict OR a.group_name IS NOT NULL THEN coalesce(a.group_name, '') END,
           a.group_name, a.failure ->> 'own_id', a.correlation_id, a.content_type, a.attributes, a.payload
    FROM again a, clock c
),
kept AS (
    INSERT INTO {schema}.history (
        id, finished_at, enqueued_at, due_at, batch, claimed_at, size, queue_id, attempts, max_attempts, version,
        priority, outcome, owner, group_name, own_id, correlation_id, content_type, attributes, failure, log)
    SELECT a.id, c.now, a.enqueued_at, a.due_at, a.batch, c.now, a.size, a.queue_id, a.attempts + 1,
           coalesce(a.max_attempts, d.max_attempts), a.version + 1, a.priority, 'processed', 'redrive', a.group_name,
           a.own_id, a.correlation_id, a.content_type, a.attributes, a.failure, a.log
    FROM again a, clock c, {schema}.queues d
    WHERE d.id = %(queue)s
),
stated AS (
    INSERT INTO {schema}.states (message_id, queue_id, etag, saved_at, value)
    SELECT a.new_id, a.origin_id, s.etag, c.now, s.value
    FROM again a JOIN {schema}.states s ON s.message_id = a.id CROSS JOIN clock c
),
counted AS (
    INSERT INTO {schema}.counts AS n (queue_id, day, slot, succeeded)
    SELECT %(queue)s, c.now / 86400000, {slot}, count(*) FROM again a, clock c GROUP BY c.now
    ON CONFLICT (queue_id, day, slot) DO UPDATE SET succeeded = n.succeeded + excluded.succeeded
),
named AS (
    INSERT INTO {schema}.own_ids AS i (queue_id, own_id, message_id, taken_at, correlation_id)
    SELECT DISTINCT ON (a.origin_id, a.failure ->> 'own_id')
           a.origin_id, a.failure ->> 'own_id', a.new_id, c.now, coalesce(a.correlation_id, a.failure ->> 'own_id')
    FROM again a, clock c WHERE a.failure ->> 'own_id' IS NOT NULL
    ON CONFLICT (queue_id, own_id) DO UPDATE SET message_id = excluded.message_id
)
SELECT count(*), array_agg(DISTINCT origin_id) FROM again;

-- name: lost_letters
-- How many dead letters of a queue cannot go back because the queue they failed in is gone.
SELECT count(*) FROM {schema}.messages m
WHERE m.queue_id = %(queue)s AND m.state = 'ready' AND m.lane IS NULL AND m.failure IS NOT NULL
  AND NOT EXISTS (SELECT FROM {schema}.queues o WHERE o.name = m.failure ->> 'queue');

-- name: purge_messages
-- Drop every message that waits.
WITH gone AS (
    DELETE FROM {schema}.messages WHERE queue_id = %(queue)s AND state = 'ready'
    RETURNING id, own_id, blob
),
freed AS (
    DELETE FROM {schema}.own_ids i USING gone g
    WHERE g.own_id IS NOT NULL AND i.queue_id = %(queue)s AND i.own_id = g.own_id AND i.message_id = g.id
)
SELECT count(*), array_agg(blob) FILTER (WHERE blob IS NOT NULL) FROM gone;

-- name: purge_parked
-- Drop every parked failure.
WITH gone AS (DELETE FROM {schema}.parked WHERE queue_id = %(queue)s RETURNING blob)
SELECT count(*), array_agg(blob) FILTER (WHERE blob IS NOT NULL) FROM gone;

-- name: delete_queue
-- Remove a queue and everything live in it. Its history goes with its days.
WITH gone AS (DELETE FROM {schema}.queues WHERE id = %(queue)s),
live AS (DELETE FROM {schema}.messages WHERE queue_id = %(queue)s RETURNING blob),
parked AS (DELETE FROM {schema}.parked WHERE queue_id = %(queue)s RETURNING blob),
lanes AS (DELETE FROM {schema}.lanes WHERE queue_id = %(queue)s),
staged AS (DELETE FROM {schema}.staged WHERE queue_id = %(queue)s),
jobs AS (DELETE FROM {schema}.jobs WHERE queue_id = %(queue)s),
notes AS (DELETE FROM {schema}.notes WHERE queue_id = %(queue)s),
ids AS (DELETE FROM {schema}.own_ids WHERE queue_id = %(queue)s),
counts AS (DELETE FROM {schema}.counts WHERE queue_id = %(queue)s),
states AS (DELETE FROM {schema}.states WHERE queue_id = %(queue)s)
SELECT array_agg(blob) FILTER (WHERE blob IS NOT NULL) FROM (SELECT blob FROM live UNION ALL SELECT blob FROM parked) b;

-- name: load_state
-- The workflow state of a message.
SELECT value, etag FROM {schema}.states WHERE message_id = %(id)s;

-- name: first_state
-- Save the first workflow state of a message.
INSERT INTO {schema}.states (message_id, queue_id, etag, saved_at, value)
VALUES (%(id)s, %(queue)s, %(fresh)s, {schema}.now_ms(), %(value)s)
ON CONFLICT (message_id) DO NOTHING
RETURNING etag;

-- name: next_state
-- Save a workflow state over the one with that etag.
UPDATE {schema}.states SET value = %(value)s, etag = %(fresh)s, saved_at = {schema}.now_ms()
WHERE message_id = %(id)s AND etag = %(etag)s
RETURNING etag;

-- name: backend_alive
-- Whether the server still works for a connection that was lost; it is told to stop.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid = %(pid)s AND application_name = %(name)s AND pid <> pg_backend_pid();

-- name: partitions
-- The days that history has a partition for.
SELECT c.relname
FROM pg_catalog.pg_inherits i
JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = '{schema}.history'::regclass
ORDER BY c.relname;

-- name: longest_retention
-- How long history has to be kept for some queue, and the server's time.
SELECT coalesce(max(retention_ms), 0), {schema}.now_ms() FROM {schema}.queues;

-- name: forget_days
-- The counts of days whose history is gone.
DELETE FROM {schema}.counts WHERE day < %(day)s;

-- name: old_days
-- Days whose history a queue needs no more although others do.
SELECT DISTINCT day FROM {schema}.counts
WHERE queue_id = %(queue)s AND day < %(day)s
ORDER BY day;

-- name: forget_history
-- A queue's history of one day.
WITH gone AS (
    DELETE FROM {schema}.history
    WHERE queue_id = %(queue)s AND finished_at >= %(day)s::bigint * 86400000
      AND finished_at < (%(day)s::bigint + 1) * 86400000
    RETURNING 1
),
uncounted AS (DELETE FROM {schema}.counts WHERE queue_id = %(queue)s AND day = %(day)s)
SELECT count(*) FROM gone;

-- name: sweep_rest
-- Old history that no partition was there for.
WITH gone AS (DELETE FROM {schema}.history_rest WHERE finished_at < %(before)s RETURNING 1) SELECT count(*) FROM gone;

-- name: fold_counts
-- Bring the counts of single transactions together.
WITH loose AS (
    DELETE FROM {schema}.counts WHERE queue_id = %(queue)s AND slot < 0
    RETURNING day, succeeded, dead_lettered
)
INSERT INTO {schema}.counts AS n (queue_id, day, slot, succeeded, dead_lettered)
SELECT %(queue)s, day, {slot}, sum(succeeded), sum(dead_lettered) FROM loose GROUP BY day
ON CONFLICT (queue_id, day, slot) DO UPDATE
SET succeeded = n.succeeded + excluded.succeeded, dead_lettered = n.dead_lettered + excluded.dead_lettered;

-- name: sweep_ids
-- Free the user's own ids of messages that ended longer ago than history is kept.
WITH gone AS (
    DELETE FROM {schema}.own_ids i
    WHERE i.queue_id = %(queue)s AND i.taken_at < %(before)s
      AND NOT EXISTS (SELECT FROM {schema}.messages m WHERE m.id = i.message_id)
      AND NOT EXISTS (SELECT FROM {schema}.parked p WHERE p.id = i.message_id)
      AND NOT EXISTS (SELECT FROM {schema}.history h WHERE h.id = i.message_id AND h.finished_at >= %(before)s)
    RETURNING 1
)
SELECT count(*) FROM gone;

-- name: sweep_states
-- Workflow states whose message has ended.
WITH gone AS (
    DELETE FROM {schema}.states s
    WHERE s.queue_id = %(queue)s AND s.saved_at < %(before)s
      AND NOT EXISTS (SELECT FROM {schema}.messages m WHERE m.id = s.message_id)
      AND NOT EXISTS (SELECT FROM {schema}.parked p WHERE p.id = s.message_id)
    RETURNING 1
)
SELECT count(*) FROM gone;

-- name: sweep_blobs
-- Large payloads that belong to no message: their enqueue was never finished, or their message has ended.
WITH gone AS (
    DELETE FROM {schema}.blobs b
    WHERE b.made_at < %(before)s
      AND NOT EXISTS (SELECT FROM {schema}.messages m WHERE m.blob = b.id)
      AND NOT EXISTS (SELECT FROM {schema}.parked p WHERE p.blob = b.id)
    RETURNING 1
)
SELECT count(*) FROM gone;

-- name: sweep_strays
-- Messages that were enqueued while their queue was being deleted.
WITH RECURSIVE known (queue_id) AS (
    (SELECT m.queue_id FROM {schema}.messages m
     WHERE m.state = 'ready' AND m.lane IS NULL ORDER BY m.queue_id LIMIT 1)
    UNION ALL
    SELECT (SELECT m.queue_id FROM {schema}.messages m
            WHERE m.state = 'ready' AND m.lane IS NULL AND m.queue_id > k.queue_id ORDER BY m.queue_id LIMIT 1)
    FROM known k WHERE k.queue_id IS NOT NULL
),
gone AS (
    DELETE FROM {schema}.messages m
    USING known k
    WHERE m.queue_id = k.queue_id AND m.state = 'ready' AND m.lane IS NULL AND m.enqueued_at < %(before)s
      AND NOT EXISTS (SELECT FROM {schema}.queues q WHERE q.id = k.queue_id)
    RETURNING 1
)
SELECT count(*) FROM gone;

-- name: stage_part
-- The server's time, if the queue is there, and whether this part was staged.
SELECT {schema}.now_ms(), EXISTS (SELECT FROM {schema}.staged s WHERE s.part = %(part)s)
FROM {schema}.queues q WHERE q.id = %(queue)s;

-- name: copy_staged
-- Write messages that nobody sees yet.
COPY {schema}.staged (
    part, place, staged_at, due_at, ttl_ms, size, queue_id, max_attempts, priority, lane, group_name, own_id,
    correlation_id, content_type, attributes, payload)
FROM STDIN (FORMAT BINARY);

-- name: take_job
-- Decide that a job is published: once, and of a stream's batches none after a later one.
INSERT INTO {schema}.jobs AS j (queue_id, job, epoch, token, published_at, keep)
VALUES (%(queue)s, %(job)s, %(epoch)s, %(token)s, {schema}.now_ms(), %(keep)s)
ON CONFLICT (queue_id, job) DO UPDATE
SET epoch = excluded.epoch, token = excluded.token, published_at = excluded.published_at
WHERE j.epoch < excluded.epoch
RETURNING token;

-- name: find_job
-- Who published a job.
SELECT token FROM {schema}.jobs WHERE queue_id = %(queue)s AND job = %(job)s;

-- name: look_at_parts
-- How many messages the parts have, which lanes they join, and whether somebody waits for them.
SELECT count(s.part), array_agg(DISTINCT s.lane) FILTER (WHERE s.lane IS NOT NULL),
       (SELECT waiting_until > {schema}.now_ms() FROM {schema}.queues WHERE id = %(queue)s)
FROM unnest(%(parts)s::bigint[]) AS w (part)
     JOIN {schema}.staged s ON s.part = w.part AND s.queue_id = %(queue)s;

-- name: publish_parts
-- Move staged messages into the queue, in the order of the parts; one whose own id is taken is left out.
WITH clock AS MATERIALIZED (SELECT {schema}.now_ms() AS now),
ordered AS MATERIALIZED (
    SELECT s.*
    FROM unnest(%(parts)s::bigint[]) WITH ORDINALITY AS w (part, turn)
         JOIN {schema}.staged s ON s.part = w.part AND s.queue_id = %(queue)s
    ORDER BY w.turn, s.place
),
numbered AS MATERIALIZED (SELECT nextval('{schema}.message_ids') AS id, o.* FROM ordered o),
taken AS (
    INSERT INTO {schema}.own_ids (queue_id, own_id, message_id, taken_at, correlation_id)
    SELECT %(queue)s, f.own_id, f.id, c.now, coalesce(f.correlation_id, f.own_id)
    FROM (
        SELECT DISTINCT ON (n.own_id COLLATE "C") n.own_id, n.id, n.correlation_id
        FROM numbered n WHERE n.own_id IS NOT NULL ORDER BY n.own_id COLLATE "C", n.id
    ) f, clock c
    ON CONFLICT (queue_id, own_id) DO NOTHING
    RETURNING message_id
)
INSERT INTO {schema}.messages (
    id, due_at, enqueued_at, batch, lapse_at, ttl_ms, size, queue_id, max_attempts, priority, lane, group_name, own_id,
    correlation_id, content_type, attributes, payload)
SELECT n.id, greatest(n.due_at, c.now), c.now, %(batch)s, greatest(n.due_at, c.now) + coalesce(n.ttl_ms, q.ttl_ms),
       n.ttl_ms, n.size, n.queue_id, n.max_attempts, n.priority, n.lane, n.group_name, n.own_id, n.correlation_id,
       n.content_type, n.attributes, n.payload
FROM numbered n, {schema}.queues q, clock c
WHERE q.id = %(queue)s AND (n.own_id IS NULL OR n.id IN (SELECT message_id FROM taken));

-- name: drop_parts
-- Remove staged messages of a queue.
DELETE FROM {schema}.staged WHERE part = ANY (%(parts)s::bigint[]) AND queue_id = %(queue)s;

-- name: sweep_staged
-- Staged messages that no job will publish any more, records of jobs that are long over, and forgotten notes.
WITH gone AS (
    DELETE FROM {schema}.staged WHERE queue_id = %(queue)s AND staged_at < %(before)s RETURNING 1
),
over AS (
    DELETE FROM {schema}.jobs WHERE queue_id = %(queue)s AND published_at < %(before)s AND NOT keep
),
noted AS (DELETE FROM {schema}.notes WHERE queue_id = %(queue)s AND saved_at < %(before)s)
SELECT count(*) FROM gone;

-- name: extent
-- The lowest and the highest number of a queue's live messages, and how many there are.
SELECT min(id), max(id), count(*) FROM {schema}.messages WHERE queue_id = %(queue)s;

-- name: extent_leased
-- The same of those that are leased.
SELECT min(id), max(id), count(*) FROM {schema}.messages WHERE queue_id = %(queue)s AND state = 'in_flight';

-- name: extent_parked
-- The same of parked failures.
SELECT min(id), max(id), count(*) FROM {schema}.parked WHERE queue_id = %(queue)s;

-- name: extent_ended
-- The same of what has finished since then.
SELECT min(id), max(id), count(*) FROM {schema}.history WHERE queue_id = %(queue)s AND finished_at >= %(since)s;

-- name: scan_live
-- Live messages in a range of numbers.
SELECT {seen}, m.claimed_at
FROM {schema}.messages m, {schema}.queues q
WHERE m.id >= %(low)s AND m.id < %(high)s AND m.queue_id = %(queue)s AND q.id = %(queue)s
  AND (NOT %(leased)s OR m.state = 'in_flight')
ORDER BY m.id;

-- name: scan_parked
-- Parked failures in a range of numbers.
SELECT p.id, p.payload, p.content_type, p.size, p.priority, p.correlation_id, p.own_id, p.attributes::text,
       p.group_name, p.failure::text
FROM {schema}.parked p
WHERE p.id >= %(low)s AND p.id < %(high)s AND p.queue_id = %(queue)s
ORDER BY p.id;

-- name: scan_ended
-- What has finished since then, in a range of numbers.
SELECT h.id, h.own_id, h.outcome, h.priority, h.enqueued_at, h.due_at, h.finished_at, h.log::text, h.claimed_at,
       h.owner, h.version, h.attempts, h.max_attempts, h.content_type, h.size, h.correlation_id, h.group_name,
       h.attributes::text, h.reason, h.error, h.result::text, h.dead_letter_queue, h.failure::text
FROM {schema}.history h
WHERE h.id >= %(low)s AND h.id < %(high)s AND h.queue_id = %(queue)s AND h.finished_at >= %(since)s
ORDER BY h.id;

-- name: write_note
-- Write a note unless there is one.
INSERT INTO {schema}.notes (queue_id, name, saved_at, value)
SELECT q.id, %(name)s, {schema}.now_ms(), %(value)s::bytea FROM {schema}.queues q WHERE q.id = %(queue)s
ON CONFLICT (queue_id, name) DO NOTHING;

-- name: read_note
-- A note.
SELECT value FROM {schema}.notes WHERE queue_id = %(queue)s AND name = %(name)s;

-- name: drop_note
-- Remove a note.
DELETE FROM {schema}.notes WHERE queue_id = %(queue)s AND name = %(name)s;

-- name: write_token
-- Keep a token under a new id; no row where the id is taken.
INSERT INTO {schema}.tokens (id, value) VALUES (%(id)s, %(value)s) ON CONFLICT DO NOTHING RETURNING id;

-- name: list_tokens
-- All tokens.
SELECT id, value FROM {schema}.tokens ORDER BY id;

-- name: drop_token
-- Forget a token.
DELETE FROM {schema}.tokens WHERE id = %(id)s RETURNING id;

-- name: key_usage
-- How many values are sealed under each key, by the id in front of them; '' for those that are not.
WITH heads AS (
    SELECT CASE WHEN octet_length(payload) <> size THEN substring(payload for 48) END AS head
    FROM {schema}.messages WHERE payload IS NOT NULL
    UNION ALL
    SELECT CASE WHEN octet_length(payload) <> size THEN substring(payload for 48) END
    FROM {schema}.parked WHERE payload IS NOT NULL
    UNION ALL
    SELECT CASE WHEN substring(data for 2) = 'BX' THEN substring(data for 48) END FROM {schema}.chunks WHERE place = 0
    UNION ALL
    SELECT CASE WHEN substring(value for 2) = 'BX' THEN substring(value for 48) END FROM {schema}.states
    UNION ALL
    SELECT CASE WHEN t.value LIKE '"sealed:%%' THEN decode(substring(t.value FROM 9 FOR 64), 'base64') END
    FROM {schema}.history h,
         LATERAL (VALUES (h.attributes::text), (h.result::text), (to_json(h.error)::text)) AS t (value)
    WHERE t.value IS NOT NULL
)
SELECT coalesce(convert_from(substring(head FROM 5 FOR get_byte(head, 3)), 'SQL_ASCII'), ''), count(*)
FROM heads GROUP BY 1;
