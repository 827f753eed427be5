-- Records which proxies are active for which limits, and counts them. Who only asks writes nothing, so that a
-- replica answers, too.
--
-- KEYS  per limit, its active proxies (ZSET, by time in ms)
-- ARGV  [1] how long a proxy counts, in ms; [2] the most proxies kept per limit;
--       then for each of KEYS: n, and n proxies
-- Reply one count per key
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local life, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local now_text, oldest = string.format('%.0f', now), string.format('%.0f', now - life)
local newest = string.format('%.0f', now + life)

local counts, at = {}, 3
for i, key in ipairs(KEYS) do
  local n = tonumber(ARGV[at])
  if n > 0 then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', '(' .. oldest)
    -- Recorded before the clock stepped back by more than that: a live proxy is recorded again at once.
    redis.call('ZREMRANGEBYSCORE', key, '(' .. newest, '+inf')
  end
  for j = at + 1, at + n do
    if redis.call('ZCARD', key) < most then
      redis.call('ZADD', key, now_text, ARGV[j])
    else
      redis.call('ZADD', key, 'XX', now_text, ARGV[j])
    end
  end
  if n > 0 then
    redis.call('PEXPIRE', key, ARGV[1])
  end
  at = at + 1 + n
  counts[i] = redis.call('ZCOUNT', key, oldest, newest)
end
return counts
