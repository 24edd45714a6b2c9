-- What must come out of each piece of work, in DuckDB: the rows that the micro-batches from {first} to {last} emit, over
-- the tables with a column "batch". In braces stands what several have in common.

-- latest
SELECT key, {columns} FROM rows WHERE batch <= {last} AND key IN (SELECT key FROM rows WHERE {here}) GROUP BY key

-- first
SELECT key, min(value) AS value FROM rows GROUP BY key, batch
QUALIFY {here} AND batch = min(batch) OVER (PARTITION BY key)

-- floor
SELECT key, value FROM rows WHERE value % {floor} = 0 AND {here}

-- counted
SELECT key, n FROM (
    SELECT key, batch, row_number() OVER (PARTITION BY key ORDER BY batch) AS n FROM rows WHERE batch <= {last}
) WHERE {here}

-- joined
SELECT left_key AS key, left_id, right_id FROM "left" AS L JOIN "right" AS R
ON left_key = right_key AND right_time BETWEEN left_time AND left_time + INTERVAL '10 seconds'
WHERE greatest(L.batch, R.batch) BETWEEN {first} AND {last}

-- windows
WITH marks AS (  -- the windows whose end the watermark passes from micro-batch to micro-batch; append, so each one once
    SELECT coalesce(max(epoch_us("time")) FILTER (batch < {first} - 1) - {delay}, 0) AS before,
        coalesce(max(epoch_us("time")) FILTER (batch < {last}) - {delay}, 0) AS after
    FROM rows
), copies AS (
    SELECT key, value, (epoch_us("time") // {slide} - unnest(range({size} // {slide}))) * {slide} + {size} AS window_end
    FROM rows
)
SELECT key, CAST(make_timestamp(window_end) AS TIMESTAMP) AS window_end,
    count(*) AS n, CAST(sum(value) AS BIGINT) AS total
FROM copies, marks WHERE window_end > before AND window_end <= after
GROUP BY ALL
