-- Makes buckets unused, except for what proxies have leased from them: that may still be used, and
-- stays owed, or counted, until it cannot.
--
-- KEYS  the buckets
-- Reply how many of them there were

local BUCKET = '(:%d+:%d+:%d+:%d+:%d+:[;-z]*:[;-z]*)$'
local WINDOW = ':(%d+):%d+(:[;-z]*:[;-z]*)$'

-- A debt of 0; whatever reads it next finds that the bucket owes its leases. Of a window, what is out
-- of the count of now.
local function unused(text)
  local head, at, parts, rest = string.match(text, '^(b%d+):%d+:(%d+):(%d+)' .. BUCKET)
  if head then
    return head .. ':0:' .. at .. ':' .. parts .. rest
  end
  head, at, rest = string.match(text, '^(g%d+):%d+:%d+:%d+:(%d+)' .. BUCKET)
  if head then
    return head .. ':' .. at .. ':0:1:' .. at .. rest
  end
  local out
  head, out, rest = string.match(text, '^(f%d+:%d+):%d+' .. WINDOW)
  if head and out + 0 > 0 then
    return head .. ':' .. out .. ':' .. out .. ':0' .. rest
  end
  local length
  head, length, out, rest = string.match(text, '^(w%d+:%d+):%d+:%d+:(%d+)' .. WINDOW)
  return head and out + 0 > 0 and head .. ':' .. out .. ':0:' .. length .. ':' .. out .. ':0' .. rest
end

-- Leaves of sub-windows what is leased out of the newest; says whether that is anything.
local function keep_sub_window(key)
  local text = redis.pcall('HGET', key, 'l')
  local index, before, out, rest =
    string.match(type(text) == 'string' and text or '', '^(%-?%d+):(%-?%d+):(%d+):%d+(:[;-z]*:[;-z]*)$')
  if not index or out + 0 == 0 then
    return false
  end
  local flat, gone = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do
    if flat[i] ~= 'w' and flat[i] ~= 'g' and flat[i] ~= 'l' and flat[i] ~= index then
      gone[#gone + 1] = flat[i]
    end
  end
  redis.call('HSET', key, index, out, 'l', index .. ':' .. before .. ':' .. out .. ':0' .. rest)
  for _, field in ipairs(gone) do
    redis.call('HDEL', key, field)
  end
  return true
end

local found = 0
for _, key in ipairs(KEYS) do
  local text = redis.pcall('GET', key)
  local kept = type(text) == 'string' and unused(text)
  if kept then
    redis.call('SET', key, kept, 'KEEPTTL')
    found = found + 1
  elseif type(text) == 'table' and keep_sub_window(key) then
    found = found + 1
  else
    found = found + redis.call('UNLINK', key)
  end
end
return found
