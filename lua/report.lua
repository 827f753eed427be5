-- Stores one report of a limiter in place of its earlier one.
--
-- KEYS  the reports of all limiters on one subject and time slot (HASH, a field for each)
-- ARGV  [1] the limiter [2] its report [3] how long the reports are kept, in ms
--       [4] the most limiters whose reports are kept
-- Reply the time, in ms
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local report = string.format('%.0f', now) .. ' ' .. ARGV[2]

local added = redis.call('HSET', KEYS[1], ARGV[1], report)
if added == 1 and redis.call('HLEN', KEYS[1]) > tonumber(ARGV[4]) then
  redis.call('HDEL', KEYS[1], ARGV[1])
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return now
