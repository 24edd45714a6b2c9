-- The Nexmark queries with state in Spark's SQL, for job.sql over the tables person, auction and bid. Not here: q12,
-- since Spark's SQL has no word for windows of processing time. In braces stands what several have in common.

-- q3
SELECT P.name, P.city, P.state, A.id FROM auction A JOIN person P ON A.seller = P.id
WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')

-- q4
SELECT category AS id, sum(final) div count(*) AS final
FROM (SELECT max(B.price) AS final, A.category {in_time} GROUP BY A.id, A.category) GROUP BY category

-- q5
SELECT C.auction, C.num FROM ({hops}) C
JOIN (SELECT max(num) AS most, starttime, endtime FROM ({hops}) GROUP BY starttime, endtime) M
ON C.starttime = M.starttime AND C.endtime = M.endtime AND C.num >= M.most

-- q6
SELECT seller, sum(price) OVER last div count(*) OVER last AS avg_price FROM (
    SELECT A.id, A.seller, B.price, B.dateTime AS at,
        row_number() OVER (PARTITION BY A.id, A.seller ORDER BY B.price DESC, B.dateTime) AS place {in_time}
) WHERE place = 1
WINDOW last AS (PARTITION BY seller ORDER BY at, id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW)

-- q7
SELECT B.auction, B.bidder, B.price, B.dateTime, B.extra FROM bid B JOIN (
    SELECT max(price) AS most, w.start AS opened, w.end AS closed
    FROM (SELECT price, window(dateTime, '10 seconds') AS w FROM bid) GROUP BY w
) H ON B.price = H.most WHERE B.dateTime BETWEEN H.opened AND H.closed

-- q8
SELECT P.id, P.name, P.w.start AS stime
FROM (
    SELECT id, name, w FROM (SELECT id, name, window(dateTime, '10 seconds') AS w FROM person) GROUP BY id, name, w
) P JOIN (
    SELECT seller, w FROM (SELECT seller, window(dateTime, '10 seconds') AS w FROM auction) GROUP BY seller, w
) A ON P.id = A.seller AND P.w = A.w

-- q9
SELECT id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra,
    auction, bidder, price, bid_dateTime, bid_extra
FROM (
    SELECT A.*, B.auction, B.bidder, B.price, B.dateTime AS bid_dateTime, B.extra AS bid_extra,
        row_number() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.dateTime) AS place {in_time}
) WHERE place = 1

-- q11
SELECT bidder, count(*) AS bid_count, w.start AS starttime, w.end AS endtime
FROM (SELECT bidder, session_window(dateTime, '10 seconds') AS w FROM bid) GROUP BY bidder, w

-- q13
SELECT B.auction, B.bidder, B.price, B.dateTime, S.value
FROM bid B JOIN side_input S ON B.auction % {sides} = S.key

-- q15
SELECT {day}, {rank_counts}, {distinct_counts} FROM bid GROUP BY day

-- q16
SELECT channel, {day}, max(date_format(dateTime, 'HH:mm')) AS minute, {rank_counts}, {distinct_counts}
FROM bid GROUP BY channel, day

-- q17
SELECT auction, {day}, {rank_counts}, min(price) AS min_price, max(price) AS max_price,
    sum(price) div count(*) AS avg_price, sum(price) AS sum_price FROM bid GROUP BY auction, day

-- q18
SELECT auction, bidder, price, channel, url, dateTime, extra FROM (
    SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) AS place FROM bid
) WHERE place = 1

-- q19
SELECT auction, bidder, price, channel, url, dateTime, extra, CAST(place AS BIGINT) AS rank_number FROM (
    SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, dateTime) AS place FROM bid
) WHERE place <= 10

-- q20
SELECT auction, bidder, price, channel, url, B.dateTime AS bid_dateTime, B.extra AS bid_extra, itemName,
    description, initialBid, reserve, A.dateTime AS auction_dateTime, expires, seller, category,
    A.extra AS auction_extra
FROM bid B JOIN auction A ON B.auction = A.id WHERE A.category = 10
