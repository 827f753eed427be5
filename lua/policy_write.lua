-- Makes one edit of a domain's record, all of it or nothing: compares the revision, writes, appends
-- to the history, publishes.
--
-- KEYS  [1] the record (HASH), [2] the history (STREAM),
--       then one per entry of ARGV's last part: the overrides of a limit (HASH)
-- ARGV  [1] the revision number that the edit is based on; '' where there was no record or a
--           deleted one; '*' for whatever there is, as long as it is there (a reset)
--       [2] its digest, in hex ('' with '' and '*')
--       [3] operation: limits, override, reset or delete
--       [4] who [5] why [6] before [7] after [8] the limit concerned, if one: for the history;
--           an override's `before` is what KEYS[3] holds of it
--       [9] the limits as JSON; '' leaves them as they are
--       [10] channel [11] the domain, published there with the new revision
--       [12] entries that the history keeps
--       then: n, and n names of limits whose generation becomes the new revision;
--             n, and n names of limits that are forgotten;
--             for each of KEYS[3..]: 1 where all that is there goes first, else 0;
--                                    n, and n pairs (field, value), value '' removes
-- Reply [1] 1 written, 0 conflict, 2 a record of a later format; [2] the revision number there is
--       now, 0 for none; [3] its digest; [4] 1 if it is deleted
local FORMAT = '1'
local record, history = KEYS[1], KEYS[2]

local known = redis.call('HMGET', record, 'format', 'revision', 'digest', 'deleted')
local format, number, digest, deleted = known[1], known[2], known[3] or '', known[4]
if format and format ~= FORMAT then
  return { 2, 0, format, 0 }
end

local expected = ARGV[1]
local matches
if expected == '*' then
  matches = number and not deleted
elseif expected == '' then
  matches = not number or deleted
else
  matches = number == expected and digest == ARGV[2] and not deleted
end
if not matches then
  return { 0, tonumber(number or 0), digest, deleted and 1 or 0 }
end

-- Before the first write: a key of another type is an error, and an error must change nothing.
local last = redis.call('XREVRANGE', history, '+', '-', 'COUNT', 1)[1]
for i = 3, #KEYS do
  redis.call('HLEN', KEYS[i])
end

-- A record that was lost goes on from its history, so that a number is never used twice.
local newest = tonumber(number or 0)
if last then
  newest = math.max(newest, tonumber(string.match(last[1], '^%d+')))
end
local revision = string.format('%.0f', newest + 1)
local time = redis.call('TIME')
local at_ms = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
-- Chained, so that two histories that parted (a backup was restored) never meet again.
digest = string.sub(
  redis.sha1hex(digest .. '\n' .. revision .. '\n' .. at_ms .. '\n' .. table.concat(ARGV, '\n')), 1, 16)

local at = 13
local function take()
  at = at + 1
  return ARGV[at - 1]
end

redis.call('HSET', record, 'format', FORMAT, 'revision', revision, 'digest', digest)
if ARGV[9] ~= '' then
  redis.call('HSET', record, 'limits', ARGV[9])
end
if ARGV[3] == 'delete' then
  redis.call('HSET', record, 'deleted', '1')
elseif deleted then
  redis.call('HDEL', record, 'deleted')
end
for _ = 1, tonumber(take()) do
  redis.call('HSET', record, 'g:' .. take(), revision)
end
for _ = 1, tonumber(take()) do
  redis.call('HDEL', record, 'g:' .. take())
end
local before = ARGV[6]
for i = 3, #KEYS do
  if take() == '1' then
    redis.call('DEL', KEYS[i])
  end
  for _ = 1, tonumber(take()) do
    local field, value = take(), take()
    if ARGV[3] == 'override' then
      before = redis.call('HGET', KEYS[i], field) or ''
    end
    if value == '' then
      redis.call('HDEL', KEYS[i], field)
    else
      redis.call('HSET', KEYS[i], field, value)
    end
  end
end
redis.call('XADD', history, 'MAXLEN', ARGV[12], revision .. '-0',
  'at', at_ms, 'op', ARGV[3], 'who', ARGV[4], 'why', ARGV[5],
  'before', before, 'after', ARGV[7], 'limit', ARGV[8], 'digest', digest)
redis.call('PUBLISH', ARGV[10], ARGV[11] .. ' ' .. revision .. ' ' .. digest)
return { 1, tonumber(revision), digest, ARGV[3] == 'delete' and 1 or 0 }
