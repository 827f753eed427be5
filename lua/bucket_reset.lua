-- Makes buckets unused, except for what proxies have leased from them: that may still be used, and
-- stays owed until it cannot.
--
-- KEYS  the buckets
-- Reply how many of them there were

local LEASES = '(:%d+:%d+:%d+:%d+:%d+:[;-z]*:[;-z]*)$'

-- A debt of 0; whatever reads it next finds that the bucket owes its leases.
local function without_debt(text)
  local generation, at, parts, leases = string.match(text, '^(b%d+):%d+:(%d+):(%d+)' .. LEASES)
  if generation then
    return generation .. ':0:' .. at .. ':' .. parts .. leases
  end
  generation, at, leases = string.match(text, '^(g%d+):%d+:%d+:%d+:(%d+)' .. LEASES)
  return generation and generation .. ':' .. at .. ':0:1:' .. at .. leases
end

local found = 0
for _, key in ipairs(KEYS) do
  local text = redis.pcall('GET', key)
  local leased = type(text) == 'string' and without_debt(text)
  if leased then
    redis.call('SET', key, leased, 'KEEPTTL')
    found = found + 1
  else
    found = found + redis.call('UNLINK', key)
  end
end
return found
