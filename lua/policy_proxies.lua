-- Notes which proxies asked for which limits, and counts those that did lately.
--
-- KEYS  per limit, the proxies that asked for it (ZSET, by time in ms)
-- ARGV  [1] how long a proxy counts, in ms; then for each of KEYS: n, and n proxies
-- Reply one count per key
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local life = tonumber(ARGV[1])
local now_text, oldest = string.format('%.0f', now), string.format('%.0f', now - life)

local counts, at = {}, 2
for i, key in ipairs(KEYS) do
  local n = tonumber(ARGV[at])
  for j = at + 1, at + n do
    redis.call('ZADD', key, now_text, ARGV[j])
  end
  at = at + 1 + n
  redis.call('ZREMRANGEBYSCORE', key, '-inf', '(' .. oldest)
  if n > 0 then
    redis.call('PEXPIRE', key, ARGV[1])
  end
  counts[i] = redis.call('ZCARD', key)
end
return counts
