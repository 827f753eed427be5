-- Writes down what one limiter saw, over what it wrote there before.
--
-- KEYS  the notes of all limiters on one matter and slot of time (HASH, a field for each)
-- ARGV  [1] the limiter [2] its note [3] how long the notes are kept, in ms
--       [4] limiters whose notes are kept at most
-- Reply the time, in ms
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local note = string.format('%.0f', now) .. ' ' .. ARGV[2]

local added = redis.call('HSET', KEYS[1], ARGV[1], note)
if added == 1 and redis.call('HLEN', KEYS[1]) > tonumber(ARGV[4]) then
  redis.call('HDEL', KEYS[1], ARGV[1])
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return now
