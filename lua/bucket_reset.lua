-- Makes buckets unused, except for leased units: proxies may still use those, so they stay charged
-- until they expire.
--
-- KEYS  the buckets, then the keys of their reservations and denials, which are deleted
-- ARGV  how many of KEYS are buckets
-- Reply how many of the buckets existed

local BUCKET = '(:%d+:%d+:%d+:%d+:%d+:[;-z]*:[;-z]*)$'
local WINDOW = ':(%d+):%d+(:[;-z]*:[;-z]*)$'

-- The state to keep, if any: a debt of 0, to which the next read adds leased units; of a window, the
-- outstanding units of its count; of sub-windows, those of the newest.
local function unused(text)
  local head, at, parts, rest = string.match(text, '^(b%d+):%d+:(%d+):(%d+):?o?%d*' .. BUCKET)
  if head then
    return head .. ':0:' .. at .. ':' .. parts .. rest
  end
  head, at, rest = string.match(text, '^(g%d+):%d+:%d+:%d+:?o?%d*:(%d+)' .. BUCKET)
  if head then
    return head .. ':' .. at .. ':0:1:' .. at .. rest
  end
  local out
  head, out, rest = string.match(text, '^(f%d+:%d+):%d+' .. WINDOW)
  if not head then
    head, out, rest = string.match(text, '^(c%d+:%d+:%d+:%d+):%d+' .. WINDOW)
  end
  if head and out + 0 > 0 then
    return head .. ':' .. out .. ':' .. out .. ':0' .. rest
  end
  local length
  local index, before
  head, index, before, out, rest =
    string.match(text, '^(s%d+:%d+):.*|(%-?%d+):(%-?%d+):(%d+):%d+(:[;-z]*:[;-z]*)$')
  if head and out + 0 > 0 then
    local origin = string.format('%.0f', index - 1)
    return head .. ':' .. out .. ':' .. origin .. ':' .. origin .. ':' .. index .. ':' .. out .. ';|'
      .. index .. ':' .. before .. ':' .. out .. ':0' .. rest
  end
  head, length, out, rest = string.match(text, '^(w%d+:%d+):%d+:%d+:(%d+)' .. WINDOW)
  return head and out + 0 > 0 and head .. ':' .. out .. ':0:' .. length .. ':' .. out .. ':0' .. rest
end

-- How long a reset of requests in flight leaves a mark: longer than limiters take to read an edit.
local FORGOTTEN_MS = 60000

local found = 0
local buckets = ARGV[1] + 0
for i, key in ipairs(KEYS) do
  local text = i <= buckets and redis.pcall('GET', key)
  -- A value of another type is no bucket. After any other error, what is leased is unknown.
  if type(text) == 'table' and not string.find(text.err, 'WRONGTYPE', 1, true) then
    return text
  end
  local kept = type(text) == 'string' and unused(text)
  local generation = type(text) == 'table' and redis.pcall('ZSCORE', key, 'g')
  if i > buckets then
    redis.call('UNLINK', key)
  elseif type(generation) == 'string' then
    -- Of requests in flight stay two marks (lib/concurrency.lua), which keep a limiter with older limits from
    -- entering a removed slot again: the generation, and when the set was written, which has the lowest score.
    local written = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
    redis.call('UNLINK', key)
    redis.call('ZADD', key, written, 't', generation - 1, 'g')
    redis.call('PEXPIRE', key, FORGOTTEN_MS)
    found = found + 1
  elseif kept then
    redis.call('SET', key, kept, 'KEEPTTL')
    found = found + 1
  else
    found = found + redis.call('UNLINK', key)
  end
end
return found
