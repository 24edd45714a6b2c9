-- The Nexmark queries in Flink SQL, each with the columns of the same query in DuckDB. rt is the event time in
-- milliseconds, all that Flink's watermarks take; dateTime has the microseconds. Joins that are not of windows take no
-- rt: Flink allows no event time in their inputs. In braces stands what several have in common.

-- q4
SELECT category AS id, AVG(final) AS final FROM (
    SELECT MAX(B.price) AS final, A.category FROM auction AS A, bid AS B
    WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
    GROUP BY A.id, A.category
) GROUP BY category

-- q5
SELECT C.auction, C.num FROM ({hops}) AS C
JOIN (
    SELECT max(num) AS most, window_start, window_end FROM ({hops}) GROUP BY window_start, window_end
) AS M
ON C.window_start = M.window_start AND C.window_end = M.window_end AND C.num >= M.most

-- q7
SELECT B.auction, B.bidder, B.price, B.dateTime, B.extra
FROM (SELECT auction, bidder, price, dateTime, extra FROM bid) AS B
JOIN (
    SELECT MAX(price) AS maxprice, window_start, window_end
    FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(rt), INTERVAL '10' SECOND))
    GROUP BY window_start, window_end
) AS H
ON B.price = H.maxprice WHERE B.dateTime BETWEEN H.window_start AND H.window_end

-- q8
SELECT P.id, P.name, CAST(P.window_start AS TIMESTAMP(6)) AS stime
FROM (
    SELECT id, name, window_start, window_end FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(rt), INTERVAL '10' SECOND))
    GROUP BY id, name, window_start, window_end
) AS P
JOIN (
    SELECT seller, window_start, window_end FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(rt), INTERVAL '10' SECOND))
    GROUP BY seller, window_start, window_end
) AS A
ON P.id = A.seller AND P.window_start = A.window_start AND P.window_end = A.window_end

-- q9
SELECT id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra,
    auction, bidder, price, bid_dateTime, bid_extra
FROM (
    SELECT {auction}, B.auction, B.bidder, B.price, B.dateTime AS bid_dateTime, B.extra AS bid_extra,
        ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.dateTime ASC) AS place
    FROM auction AS A, bid AS B
    WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
) WHERE place <= 1

-- q11
SELECT bidder, count(*) AS bid_count, CAST(window_start AS TIMESTAMP(6)) AS starttime,
    CAST(window_end AS TIMESTAMP(6)) AS endtime
FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(rt), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end

-- q15
SELECT DATE_FORMAT(dateTime, 'yyyy-MM-dd') AS `day`, {rank_counts}, {distinct_counts}
FROM bid GROUP BY DATE_FORMAT(dateTime, 'yyyy-MM-dd')

-- q16
SELECT channel, DATE_FORMAT(dateTime, 'yyyy-MM-dd') AS `day`,
    max(DATE_FORMAT(dateTime, 'HH:mm')) AS `minute`, {rank_counts}, {distinct_counts}
FROM bid GROUP BY channel, DATE_FORMAT(dateTime, 'yyyy-MM-dd')

-- q17
SELECT auction, DATE_FORMAT(dateTime, 'yyyy-MM-dd') AS `day`, {rank_counts},
    min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
FROM bid GROUP BY auction, DATE_FORMAT(dateTime, 'yyyy-MM-dd')

-- q18
SELECT auction, bidder, price, channel, url, dateTime, extra FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY rt DESC) AS place FROM bid
) WHERE place <= 1

-- q19
SELECT auction, bidder, price, channel, url, dateTime, extra, rank_number FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, dateTime ASC) AS rank_number
    FROM bid
) WHERE rank_number <= 10

-- window_join
SELECT B.auction, B.bidder, B.price, A.category, B.dateTime
FROM (SELECT * FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(rt), INTERVAL '10' SECOND))) AS B
JOIN (SELECT * FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(rt), INTERVAL '10' SECOND))) AS A
ON B.auction = A.id AND B.window_start = A.window_start AND B.window_end = A.window_end

-- window_rank
SELECT auction, bidder, price, dateTime FROM (
    SELECT *, ROW_NUMBER() OVER (
        PARTITION BY window_start, window_end, auction ORDER BY price DESC, dateTime, bidder
    ) AS place
    FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(rt), INTERVAL '10' SECOND))
) WHERE place <= 3

-- over_range
SELECT auction, bidder, price, count(*) OVER recent AS bids, sum(price) OVER recent AS total
FROM bid WINDOW recent AS (
    PARTITION BY auction ORDER BY rt RANGE BETWEEN INTERVAL '10' SECOND PRECEDING AND CURRENT ROW
)

-- match
SELECT auction, low, high, back, bidder FROM bid
MATCH_RECOGNIZE (
    PARTITION BY auction ORDER BY rt, dateTime, bidder, price
    MEASURES A.price AS low, B.price AS high, C.price AS back, C.bidder AS bidder
    ONE ROW PER MATCH AFTER MATCH SKIP TO NEXT ROW
    PATTERN (A B C) WITHIN INTERVAL '10' SECOND
    DEFINE A AS A.price < 10000, B AS B.price >= 1000000, C AS C.price < 10000
)

-- temporal_join
SELECT B.auction, B.bidder, B.price, A.category, B.dateTime
FROM bid AS B JOIN auction_versions FOR SYSTEM_TIME AS OF B.rt AS A ON B.auction = A.id
