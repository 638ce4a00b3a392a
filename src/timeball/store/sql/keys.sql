-- API keys, and requests under an idempotency key.

-- name: add_api_key
INSERT INTO timeball.api_key (id, name, role, token_hash, created_at, expires_at)
VALUES (:id, :name, :role, :token_hash, coalesce(:now, now()), coalesce(:now, now()) + :expires_in::interval)
RETURNING id, name, role, created_at, expires_at, revoked_at, used_at;

-- name: find_api_key
-- A key that is neither revoked nor expired.
SELECT *
FROM timeball.api_key
WHERE id = :id
  AND revoked_at IS NULL
  AND (expires_at IS NULL OR expires_at > coalesce(:now, now()));

-- name: note_api_key_use
-- At most once a minute: a busy key must not turn every read into a write.
UPDATE timeball.api_key
SET used_at = coalesce(:now, now())
WHERE id = :id
  AND (used_at IS NULL OR used_at < coalesce(:now, now()) - interval '1 minute');

-- name: list_api_keys
SELECT id, name, role, created_at, expires_at, revoked_at, used_at
FROM timeball.api_key
ORDER BY created_at, id;

-- name: revoke_api_key
UPDATE timeball.api_key
SET revoked_at = coalesce(revoked_at, :now, now())
WHERE id = :id
RETURNING id, name, role, created_at, expires_at, revoked_at, used_at;

-- name: has_api_keys
-- Whether a key was ever created. Revoked and expired keys count: an installation without a usable key must not become open.
SELECT EXISTS (SELECT 1 FROM timeball.api_key);

-- name: has_usable_api_key
SELECT EXISTS (
    SELECT 1
    FROM timeball.api_key
    WHERE revoked_at IS NULL
      AND (expires_at IS NULL OR expires_at > coalesce(:now, now()))
);

-- name: begin_request
-- Reserve an idempotency key. No row if it is taken: by an answer that is not older than :keep, or by a request in flight that is younger than :patience.
-- Until the answer is stored, the headers hold the seed of the ids of the request. A repeated request keeps the seed, because the first may have been done.
INSERT INTO timeball.idempotency_key AS known (caller, key, request_hash, created_at, headers)
VALUES (:caller, :key, :request_hash, coalesce(:now, now()), jsonb_build_object('seed', :seed::text))
ON CONFLICT (caller, key) DO UPDATE
SET request_hash = excluded.request_hash,
    created_at = excluded.created_at,
    status = NULL,
    headers = CASE WHEN known.status IS NULL
                    AND known.headers IS NOT NULL
                    AND known.request_hash = excluded.request_hash
                    AND known.created_at >= coalesce(:now, now()) - :keep::interval THEN known.headers
                   ELSE excluded.headers END,
    body = NULL
WHERE known.created_at < coalesce(:now, now()) - :keep::interval
   OR (known.status IS NULL AND known.created_at < coalesce(:now, now()) - :patience::interval)
RETURNING headers->>'seed' AS seed;

-- name: find_request
SELECT request_hash, status, headers::text AS headers, body
FROM timeball.idempotency_key
WHERE caller = :caller
  AND key = :key;

-- name: finish_request
UPDATE timeball.idempotency_key
SET status = :status,
    headers = :headers::jsonb,
    body = :body
WHERE caller = :caller
  AND key = :key;

-- name: forget_request
DELETE FROM timeball.idempotency_key
WHERE caller = :caller
  AND key = :key
  AND status IS NULL;

-- name: leave_request_open
-- Let the next request under the key run at once, as if :patience had passed.
UPDATE timeball.idempotency_key
SET created_at = coalesce(:now, now()) - :patience::interval - interval '1 second'
WHERE caller = :caller
  AND key = :key
  AND status IS NULL;

-- name: forget_old_requests
-- By ctid: a plan for all ages would read the whole table, to join it with a few rows of itself. The rows are locked, and checked again after a lock
-- wait, so that no key is deleted that a new request has reserved again.
DELETE FROM timeball.idempotency_key
WHERE ctid = ANY (ARRAY(
    SELECT ctid
    FROM timeball.idempotency_key
    WHERE created_at < coalesce(:now, now()) - :keep::interval
    ORDER BY created_at
    LIMIT 1000
    FOR UPDATE SKIP LOCKED
));
