-- What the Nexmark queries mean: DuckDB SQL over the views person, auction and bid.
--
-- Of each query its name and what it is, its columns, and of each kind of event the fields it reads. In braces stands
-- what several have in common.

-- q0: Pass through: every bid
-- columns = auction bidder price: bigint; dateTime: timestamp; extra: string
-- bid = auction bidder price dateTime extra
SELECT auction, bidder, price, dateTime, extra FROM bid

-- q1: Currency conversion: every bid with its price in euros
-- columns = auction bidder: bigint; price: decimal(23,3); dateTime: timestamp; extra: string
-- bid = auction bidder price dateTime extra
SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price, dateTime, extra FROM bid

-- q2: Selection: the bids on every 123rd auction
-- columns = auction price: bigint
-- bid = auction price
SELECT auction, price FROM bid WHERE auction % 123 = 0

-- q3: Local item suggestion: who sells in OR, ID or CA in category 10
-- columns = name city state: string; id: bigint
-- person = id name city state
-- auction = id seller category
SELECT P.name, P.city, P.state, A.id
FROM auction AS A JOIN person AS P ON A.seller = P.id
WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')

-- q4: Average price for a category: mean of its auctions' highest bids in time, rounded down
-- columns = id final: bigint
-- auction = id category dateTime expires
-- bid = auction price dateTime
SELECT category AS id, CAST(sum(final) // count(*) AS BIGINT) AS final
FROM (
    SELECT max(B.price) AS final, A.category
    FROM auction AS A
    JOIN bid AS B ON A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
    GROUP BY A.id, A.category
)
GROUP BY category

-- q5: Hot items: the auctions with the most bids in the last 10 s, every 2 s
-- columns = auction num: bigint
-- bid = auction dateTime
WITH hops AS (
    SELECT auction, epoch_us(dateTime) // 2000000 - unnest(range(5)) AS window_number FROM bid
), counts AS (
    SELECT auction, window_number, count(*) AS num FROM hops GROUP BY auction, window_number
)
SELECT auction, num FROM counts
QUALIFY num = max(num) OVER (PARTITION BY window_number)

-- q6: Average selling price by seller, over this and the ten auctions before it
-- columns = seller avg_price: bigint
-- auction = id seller dateTime expires
-- bid = auction price dateTime
SELECT seller, CAST(sum(price) OVER last // count(*) OVER last AS BIGINT) AS avg_price
FROM (SELECT A.id, A.seller, B.price, B.dateTime AS bid_dateTime {winning_bids})
WINDOW last AS (
    PARTITION BY seller ORDER BY bid_dateTime, id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW
)

-- q7: Highest bid of each 10 s
-- columns = auction bidder price: bigint; dateTime: timestamp; extra: string
-- bid = auction bidder price dateTime extra
WITH highest AS (
    SELECT max(price) AS maxprice,
        time_bucket(INTERVAL '10 s', dateTime) + INTERVAL '10 s' AS window_end
    FROM bid GROUP BY window_end
)
SELECT B.auction, B.bidder, B.price, B.dateTime, B.extra
FROM bid AS B JOIN highest AS H ON B.price = H.maxprice
WHERE B.dateTime BETWEEN H.window_end - INTERVAL '10 s' AND H.window_end

-- q8: Monitor new users: people who registered and opened an auction in the same 10 s
-- columns = id: bigint; name: string; stime: timestamp
-- person = id name dateTime
-- auction = seller dateTime
SELECT P.id, P.name, P.stime
FROM (SELECT DISTINCT id, name, time_bucket(INTERVAL '10 s', dateTime) AS stime FROM person) AS P
JOIN (SELECT DISTINCT seller, time_bucket(INTERVAL '10 s', dateTime) AS stime FROM auction) AS A
ON P.id = A.seller AND P.stime = A.stime

-- q9: Winning bids: each auction with its highest in-time bid, the earliest of equal ones
-- columns = id: bigint; itemName description: string; initialBid reserve: bigint; dateTime expires: timestamp; seller
--   category: bigint; extra: string; auction bidder price: bigint; bid_dateTime: timestamp; bid_extra: string
-- auction = id itemName description initialBid reserve dateTime expires seller category extra
-- bid = auction bidder price dateTime extra
SELECT A.*, B.auction, B.bidder, B.price, B.dateTime AS bid_dateTime, B.extra AS bid_extra
{winning_bids}

-- q10: Log to the file system: every bid with its day and minute
-- columns = auction bidder price: bigint; dateTime: timestamp; extra dt hm: string
-- bid = auction bidder price dateTime extra
SELECT auction, bidder, price, dateTime, extra,
    strftime(dateTime, '%Y-%m-%d') AS dt, strftime(dateTime, '%H:%M') AS hm
FROM bid

-- q11: User sessions: bids of a bidder with no more than 10 s between two of them
-- columns = bidder bid_count: bigint; starttime endtime: timestamp
-- bid = bidder dateTime
WITH steps AS (
    SELECT bidder, dateTime,
        dateTime - lag(dateTime) OVER mine > INTERVAL '10 s' AS opens
    FROM bid WINDOW mine AS (PARTITION BY bidder ORDER BY dateTime)
), sessions AS (
    SELECT bidder, dateTime,
        count(*) FILTER (WHERE opens) OVER (PARTITION BY bidder ORDER BY dateTime) AS session
    FROM steps
)
SELECT bidder, count(*) AS bid_count,
    min(dateTime) AS starttime, max(dateTime) + INTERVAL '10 s' AS endtime
FROM sessions GROUP BY bidder, session

-- q12: Bids of each bidder in windows of 10 s of processing time
-- columns = bidder bid_count: bigint; starttime endtime: timestamp
-- bid = bidder
SELECT bidder, count(*) AS bid_count,
    make_timestamp({start} + micro_batch * {step}) AS starttime,
    make_timestamp({start} + (micro_batch + 1) * {step}) AS endtime
FROM bid_arrival GROUP BY bidder, micro_batch

-- q13: Bounded side input: every bid with the text of its auction number modulo 10,000
-- columns = auction bidder price: bigint; dateTime: timestamp; value: string
-- bid = auction bidder price dateTime
SELECT auction, bidder, price, dateTime, CAST(S.key AS VARCHAR) AS value
FROM bid JOIN (SELECT unnest(range(10000)) AS key) AS S ON auction % 10000 = S.key

-- q14: Calculation: bids of some price range in euros, with time of day and the number of c's in extra
-- columns = auction bidder: bigint; price: decimal(23,3); bidTimeType: string; dateTime: timestamp; extra: string;
--   c_counts: bigint
-- bid = auction bidder price dateTime extra
SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price,
    CASE
        WHEN hour(dateTime) >= 8 AND hour(dateTime) <= 18 THEN 'dayTime'
        WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime'
        ELSE 'otherTime'
    END AS bidTimeType,
    dateTime, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
FROM bid
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000

-- q15: Bidding statistics of a day: bids, bidders and auctions, by level of price
-- columns = day: string; total_bids rank1_bids rank2_bids rank3_bids total_bidders rank1_bidders rank2_bidders
--   rank3_bidders total_auctions rank1_auctions rank2_auctions rank3_auctions: bigint
-- bid = auction bidder price dateTime
SELECT strftime(dateTime, '%Y-%m-%d') AS day, {rank_counts}, {distinct_counts}
FROM bid GROUP BY day

-- q16: Channel statistics of a day: as q15 for each channel, with the minute of its last bid
-- columns = channel day minute: string; total_bids rank1_bids rank2_bids rank3_bids total_bidders rank1_bidders
--   rank2_bidders rank3_bidders total_auctions rank1_auctions rank2_auctions rank3_auctions: bigint
-- bid = auction bidder price channel dateTime
SELECT channel, strftime(dateTime, '%Y-%m-%d') AS day, max(strftime(dateTime, '%H:%M')) AS minute,
    {rank_counts}, {distinct_counts}
FROM bid GROUP BY channel, day

-- q17: Auction statistics of a day: bids by level of price; lowest, highest, mean (rounded down), sum
-- columns = auction: bigint; day: string; total_bids rank1_bids rank2_bids rank3_bids min_price max_price avg_price
--   sum_price: bigint
-- bid = auction price dateTime
SELECT auction, strftime(dateTime, '%Y-%m-%d') AS day, {rank_counts},
    min(price) AS min_price, max(price) AS max_price,
    CAST(sum(price) // count(*) AS BIGINT) AS avg_price, CAST(sum(price) AS BIGINT) AS sum_price
FROM bid GROUP BY auction, day

-- q18: Last bid of each bidder on each auction
-- columns = auction bidder price: bigint; channel url: string; dateTime: timestamp; extra: string
-- bid = auction bidder price channel url dateTime extra
SELECT auction, bidder, price, channel, url, dateTime, extra FROM bid
QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) = 1

-- q19: The ten highest bids of each auction with their rank, the earlier of equal ones first
-- columns = auction bidder price: bigint; channel url: string; dateTime: timestamp; extra: string; rank_number: bigint
-- bid = auction bidder price channel url dateTime extra
SELECT auction, bidder, price, channel, url, dateTime, extra,
    row_number() OVER (PARTITION BY auction ORDER BY price DESC, dateTime) AS rank_number
FROM bid QUALIFY rank_number <= 10

-- q20: Expand a bid with its auction, where the category is 10
-- columns = auction bidder price: bigint; channel url: string; bid_dateTime: timestamp; bid_extra: string; itemName
--   description: string; initialBid reserve: bigint; auction_dateTime expires: timestamp; seller category:
--   bigint; auction_extra: string
-- bid = auction bidder price channel url dateTime extra
-- auction = id itemName description initialBid reserve dateTime expires seller category extra
SELECT auction, bidder, price, channel, url, B.dateTime AS bid_dateTime, B.extra AS bid_extra,
    itemName, description, initialBid, reserve, A.dateTime AS auction_dateTime, expires, seller,
    category, A.extra AS auction_extra
FROM bid AS B JOIN auction AS A ON B.auction = A.id
WHERE A.category = 10

-- q21: Add the channel id to a bid: of the four hot channels by name, of others from the url
-- columns = auction bidder price: bigint; channel channel_id: string
-- bid = auction bidder price channel url
SELECT auction, bidder, price, channel,
    CASE lower(channel)
        WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
        ELSE {channel_id}
    END AS channel_id
FROM bid
WHERE {channel_id} IS NOT NULL OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')

-- q22: The first three directories of a bid's url
-- columns = auction bidder price: bigint; channel dir1 dir2 dir3: string
-- bid = auction bidder price channel url
SELECT auction, bidder, price, channel,
    split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3
FROM bid

-- window_join: Bids with the auctions that were opened in the same 10 s
-- columns = auction bidder price category: bigint; dateTime: timestamp
-- auction = id category dateTime
-- bid = auction bidder price dateTime
SELECT auction, bidder, price, category, B.dateTime
FROM bid AS B JOIN auction AS A ON B.auction = A.id
    AND time_bucket(INTERVAL '10 s', B.dateTime) = time_bucket(INTERVAL '10 s', A.dateTime)

-- window_rank: The three highest bids of each auction in each 10 s, the earlier of equal ones first
-- columns = auction bidder price: bigint; dateTime: timestamp
-- bid = auction bidder price dateTime
SELECT auction, bidder, price, dateTime FROM bid
QUALIFY row_number() OVER (
    PARTITION BY auction, time_bucket(INTERVAL '10 s', dateTime) ORDER BY price DESC, dateTime, bidder
) <= 3

-- temporal_join: Bids with their auction as it was at the time of the bid, to the millisecond
-- columns = auction bidder price category: bigint; dateTime: timestamp
-- auction = id category dateTime
-- bid = auction bidder price dateTime
SELECT auction, bidder, price, category, B.dateTime
FROM bid AS B JOIN auction AS A ON B.auction = A.id
    AND date_trunc('millisecond', A.dateTime) <= date_trunc('millisecond', B.dateTime)

-- over_range: Each bid with the number and sum of its auction's bids in the ten seconds up to it, to the millisecond
-- columns = auction bidder price bids total: bigint
-- bid = auction bidder price dateTime
SELECT auction, bidder, price, count(*) OVER recent AS bids, CAST(sum(price) OVER recent AS BIGINT) AS total
FROM bid WINDOW recent AS (
    PARTITION BY auction ORDER BY date_trunc('millisecond', dateTime)
    RANGE BETWEEN INTERVAL 10 SECONDS PRECEDING AND CURRENT ROW
)

-- match: Three bids of an auction one behind the other within 10 s, to the millisecond: a low, a high and a low one
-- columns = auction low high back bidder: bigint
-- bid = auction bidder price dateTime
SELECT auction, price AS low, high, back, bidder FROM (
    SELECT auction, price, dateTime, lead(price) OVER next AS high, lead(price, 2) OVER next AS back,
        lead(bidder, 2) OVER next AS bidder, lead(dateTime, 2) OVER next AS until
    FROM bid WINDOW next AS (PARTITION BY auction ORDER BY dateTime, bidder, price)
) WHERE price < 10000 AND high >= 1000000 AND back < 10000
    AND date_trunc('millisecond', until) - date_trunc('millisecond', dateTime) < INTERVAL 10 SECONDS
